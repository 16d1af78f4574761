"""How runners end: a runner and all that its tasks have started have exited before its end is announced.

Rules:
1. On this machine an exit is seen through a pidfd, at once; on other nodes through the end of the stream, of the actor's
   one Ray call, or of the node's raylet.
2. Killed or crashed: the remaining processes of the runner and of its tasks are killed, here or by the node's agent, and
   then its end is announced.
3. All messages of a runner are delivered before its end.
4. An asyncio task that fails is logged, and ends its runner, so that nothing waits for that runner for ever.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.processes import kill_tree
from governor.tasks.runners.handle import (
    AGENT_SECONDS,
    LOST_SECONDS,
    LocalProcess,
    RemoteProcess,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from governor.tasks.cluster.cluster import Cluster
    from governor.tasks.runners.handle import RunnerHandle

RAY_REASON_SECONDS: Final = 1.0
"""Longest wait after a crash for the reason that Ray gives."""
EXIT_SECONDS: Final = 1.0
"""Between the end of a runner's stream and that of its process."""

log = logs.get_logger()


class Deaths:
    """Ends the runners in `handles`. `gone` is called once for each, with the reason, and removes it from them."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        handles: Mapping[int, RunnerHandle],
        gone: Callable[[RunnerHandle, str], None],
    ) -> None:
        self._cluster = cluster
        self._handles = handles
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._node_watches: dict[str, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="kill")

    def track(self, handle: RunnerHandle, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs a coroutine for a runner; if it fails, the runner is ended."""
        task = asyncio.create_task(work, name=f"runner.{handle.id}.{name}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._task_done, handle))
        return task

    def watch(self, handle: RunnerHandle) -> None:
        """Watches for the exit of a runner whose `process` is known."""
        if isinstance(handle.process, LocalProcess):
            self._loop.add_reader(handle.process.pidfd, self.exited, handle)
        elif handle.node not in self._node_watches:
            task = asyncio.create_task(self._watch_node(handle.node), name=f"node.{handle.node}.watch")
            self._node_watches[handle.node] = task
            task.add_done_callback(lambda _: self._node_watches.pop(handle.node, None))

    def kill(self, handle: RunnerHandle, reason: str) -> None:
        """Kills the runner; idempotent."""
        if handle.killing is not None:
            return
        handle.killing = reason
        if handle.end is None:
            handle.end = self.track(handle, self._kill(handle), "kill")

    def exited(self, handle: RunnerHandle) -> None:
        """Its process, its stream or its Ray call has ended, and it was not killed by us."""
        self._stop_watching(handle)
        if handle.end is None:
            handle.end = self.track(handle, self._crash(handle), "crash")

    def start_failed(self, handle: RunnerHandle, reason: str) -> None:
        """No actor was created: there is no process to kill or to wait for."""
        if not handle.ended.done():
            handle.ended.set_result("")
        self._announce(handle, reason)

    def call_ended(self, handle: RunnerHandle, text: str) -> None:
        """Its one Ray call has ended; `text` is the error."""
        if not handle.ended.done():
            handle.ended.set_result(text)
        if not isinstance(handle.process, LocalProcess):
            self.exited(handle)

    def stream_ended(self, handle: RunnerHandle) -> None:
        """Its process has exited, or user code has closed the runner's socket."""
        if not isinstance(handle.process, LocalProcess):
            self.exited(handle)
        elif handle.end is None:  # its exit is seen next; if it goes on, it is of no use
            reason = "the runner's connection was closed by the code of its task"
            self._loop.call_later(EXIT_SECONDS, self._kill_if_running, handle, reason)

    async def close(self) -> None:
        """Waits for terminations that have begun."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=2 * kill_tree.KILL_SECONDS)
        for watch in self._node_watches.values():
            watch.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _task_done(self, handle: RunnerHandle, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        log.error("runner.failed", runner=handle.id, step=task.get_name(), exc_info=error)
        reason = f"{task.get_name()} failed: {type(error).__name__}: {error}"
        if task is handle.end:
            self._announce(handle, reason)
        else:
            self._kill_if_running(handle, reason)

    async def _watch_node(self, node: str) -> None:
        """Watches the raylet: Ray reports its loss much later, and the runners of the node do not notice it."""
        try:
            await self._cluster.node_lost(node)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises: the loss of Ray is handled elsewhere
            log.warning("node.watch_failed", node=node, reason=f"{type(error).__name__}: {error}")
            return
        log.warning("node.lost", node=node)
        for handle in list(self._handles.values()):
            if handle.hello is not None and handle.hello.node == node:
                self.call_ended(handle, "")

    def _kill_if_running(self, handle: RunnerHandle, reason: str) -> None:
        if handle.end is None and handle.id in self._handles:
            self.kill(handle, reason)

    async def _crash(self, handle: RunnerHandle) -> None:
        """Waits for the reason from Ray; messages sent before the exit are read meanwhile."""
        await asyncio.wait({handle.ended}, timeout=RAY_REASON_SECONDS)
        ray_error = handle.ended.result() if handle.ended.done() else ""
        handle.lost = isinstance(handle.process, RemoteProcess) and await self._cluster.is_lost(handle.node)
        left = await self._kill_all(handle, lost=handle.lost)
        await self._end(handle, handle.exit_reason(ray_error), left)

    async def _kill(self, handle: RunnerHandle) -> None:
        if handle.process is None:  # it is still starting
            await self._kill_by_ray(handle)
        lost = isinstance(handle.process, RemoteProcess) and await self._cluster.is_lost(handle.node)
        left = await self._kill_all(handle, lost=lost)
        await self._end(handle, handle.killing or "", left)

    async def _kill_all(self, handle: RunnerHandle, *, lost: bool) -> list[int]:
        """Kills the runner and all that it has started; returns the pids that survive. A runner that never connected
        has started nothing.
        """
        match handle.process:
            case LocalProcess():
                return await self._kill_local(handle, handle.process)
            case RemoteProcess():
                return await self._kill_remote(handle, handle.process, lost=lost)
            case None:
                return []

    async def _kill_local(self, handle: RunnerHandle, process: LocalProcess) -> list[int]:
        self._stop_watching(handle)
        try:
            return await self._loop.run_in_executor(self._threads, process.kill_tree)
        except OSError as error:  # no descriptors are left to look at the tree
            log.exception("runner.kill_unverified", runner=handle.id, reason=str(error))
            await self._kill_by_ray(handle)
            return []

    async def _kill_remote(self, handle: RunnerHandle, process: RemoteProcess, *, lost: bool) -> list[int]:
        """Kills through the node's agent; if that does not answer, through Ray."""
        left = await process.kill_tree(seconds=LOST_SECONDS if lost else AGENT_SECONDS)
        if left is None and not lost:
            await self._kill_by_ray(handle)
        return left or []

    async def _kill_by_ray(self, handle: RunnerHandle) -> None:
        if await self._ray_kill(handle):
            await asyncio.wait({handle.ended}, timeout=kill_tree.KILL_SECONDS)

    async def _ray_kill(self, handle: RunnerHandle) -> bool:
        """Kills the actor; False if the request to Ray failed. Idempotent."""

        def kill() -> None:
            """In Ray's thread, behind the actor's creation."""
            actor, handle.actor = handle.actor, None
            if actor is not None:
                self._cluster.ray.kill(actor, no_restart=True)

        try:
            await self._cluster.call(kill)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises: Ray is lost, and its actors with it
            log.warning("runner.ray_kill_failed", runner=handle.id, reason=f"{type(error).__name__}: {error}")
            return False
        return True

    def _stop_watching(self, handle: RunnerHandle) -> None:
        if isinstance(handle.process, LocalProcess) and handle.process.is_open:
            self._loop.remove_reader(handle.process.pidfd)

    async def _end(self, handle: RunnerHandle, reason: str, left: list[int]) -> None:
        """Announces the end, once all messages of the runner are delivered."""
        if left:
            log.error("runner.unkillable", runner=handle.id, pids=left, seconds=kill_tree.KILL_SECONDS)
            reason = f"{reason}; processes {left} could not be killed"
        if handle.connection is not None and handle.file_receiver is not None:
            handle.connection.on_closed = None
            handle.connection.drain()
            await handle.file_receiver.drained()
        self._announce(handle, reason)
        await self._ray_kill(handle)

    def _announce(self, handle: RunnerHandle, reason: str) -> None:
        """Idempotent."""
        if handle.id not in self._handles:
            return
        if handle.connection is not None:
            handle.connection.on_closed = None
            handle.connection.drain()
            handle.connection.close()
        self._stop_watching(handle)
        if handle.process is not None:
            handle.process.close()
        self._gone(handle, reason)
