"""How runners end: seen dead, with all that their tasks have started, before anybody hears of it.

Rules:
1. On this machine a death is seen through a pidfd, at once; elsewhere through the end of the stream, of the actor's one
   Ray call, or of the node's raylet.
2. Killed or crashed: whatever is left of the runner and of what its tasks have started is killed, here or by the node's
   agent, and then its end is told.
3. All that it has said is told before its end.
4. A task of ours that fails is logged, and ends the runner that it was for: nobody waits for it for ever.
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
    Elsewhere,
    Here,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from governor.tasks.cluster.cluster import Cluster
    from governor.tasks.runners.handle import RunnerHandle

WORDS_SECONDS: Final = 1.0
"""How long after a crash Ray is waited for, to say why."""
LAST_SECONDS: Final = 1.0
"""Between the end of a runner's stream and that of its process."""

log = logs.get_logger()


class Deaths:
    """Of the runners among `members`. `gone` is told of each end once, with the reason, and takes it out of them."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        members: Mapping[int, RunnerHandle],
        gone: Callable[[RunnerHandle, str], None],
    ) -> None:
        self._cluster = cluster
        self._members = members
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._node_watches: dict[str, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="kill")

    def hold(self, member: RunnerHandle, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Does something for a runner, which ends when that fails."""
        task = asyncio.create_task(work, name=f"runner.{member.id}.{name}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._held, member))
        return task

    def watch(self, member: RunnerHandle) -> None:
        """From now on, until it has ended; its `reach` is known."""
        if isinstance(member.reach, Here):
            self._loop.add_reader(member.reach.handle, self.died, member)
        elif member.node not in self._node_watches:
            task = asyncio.create_task(self._watch_node(member.node), name=f"node.{member.node}.watch")
            self._node_watches[member.node] = task
            task.add_done_callback(lambda _: self._node_watches.pop(member.node, None))

    def kill(self, member: RunnerHandle, reason: str) -> None:
        """Ends it; again: nothing."""
        if member.killing is not None:
            return
        member.killing = reason
        if member.end is None:
            member.end = self.hold(member, self._kill(member), "kill")

    def died(self, member: RunnerHandle) -> None:
        """Its process, its stream or its Ray call has ended without our doing."""
        self._stop_watching(member)
        if member.end is None:
            member.end = self.hold(member, self._crash(member), "crash")

    def unstarted(self, member: RunnerHandle, reason: str) -> None:
        """There is no actor: nothing of it is left, and nobody waits for its end."""
        if not member.ended.done():
            member.ended.set_result("")
        self._announce(member, reason)

    def call_ended(self, member: RunnerHandle, text: str) -> None:
        """Its one Ray call is over; `text` says why."""
        if not member.ended.done():
            member.ended.set_result(text)
        if not isinstance(member.reach, Here):
            self.died(member)

    def stream_ended(self, member: RunnerHandle) -> None:
        """Its process is dead, or user code has closed what was not its own."""
        if not isinstance(member.reach, Here):
            self.died(member)
        elif member.end is None:  # its death is seen next; if it lives, it is of no use
            reason = "the runner's connection was closed by the code of its task"
            self._loop.call_later(LAST_SECONDS, self._kill_deaf, member, reason)

    async def close(self) -> None:
        """Waits for what was begun."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=2 * kill_tree.KILL_SECONDS)
        for watch in self._node_watches.values():
            watch.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _held(self, member: RunnerHandle, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        log.error("runner.failed", runner=member.id, step=task.get_name(), exc_info=error)
        reason = f"{task.get_name()} failed: {type(error).__name__}: {error}"
        if task is member.end:
            self._announce(member, reason)
        else:
            self._kill_deaf(member, reason)

    async def _watch_node(self, node: str) -> None:
        """Its raylet may be gone long before Ray says so, and its runners do not notice."""
        try:
            await self._cluster.node_lost(node)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises: it is lost, which others see
            log.warning("node.unwatched", node=node, reason=f"{type(error).__name__}: {error}")
            return
        log.warning("node.lost", node=node)
        for member in list(self._members.values()):
            if member.hello is not None and member.hello.node == node:
                self.call_ended(member, "")

    def _kill_deaf(self, member: RunnerHandle, reason: str) -> None:
        if member.end is None and member.id in self._members:
            self.kill(member, reason)

    async def _crash(self, member: RunnerHandle) -> None:
        """Waits for Ray's word on it; what the runner said before its death is read meanwhile."""
        await asyncio.wait({member.ended}, timeout=WORDS_SECONDS)
        told = member.ended.result() if member.ended.done() else ""
        member.lost = isinstance(member.reach, Elsewhere) and await self._cluster.is_lost(member.node)
        left = await self._kill_all(member, lost=member.lost)
        await self._end(member, member.why_dead(told), left)

    async def _kill(self, member: RunnerHandle) -> None:
        if member.reach is None:  # it is on its way
            await self._kill_by_ray(member)
        lost = isinstance(member.reach, Elsewhere) and await self._cluster.is_lost(member.node)
        left = await self._kill_all(member, lost=lost)
        await self._end(member, member.killing or "", left)

    async def _kill_all(self, member: RunnerHandle, *, lost: bool) -> list[int]:
        """The runner, if it lives, and all that it has started; the pids of those that live on. One that has never
        come has started nothing.
        """
        match member.reach:
            case Here():
                return await self._kill_here(member, member.reach)
            case Elsewhere():
                return await self._kill_elsewhere(member, member.reach, lost=lost)
            case None:
                return []

    async def _kill_here(self, member: RunnerHandle, reach: Here) -> list[int]:
        self._stop_watching(member)
        try:
            return await self._loop.run_in_executor(self._threads, reach.kill_tree)
        except OSError as error:  # no descriptors are left to look at the tree
            log.exception("runner.tree_unseen", runner=member.id, reason=str(error))
            await self._kill_by_ray(member)
            return []

    async def _kill_elsewhere(self, member: RunnerHandle, reach: Elsewhere, *, lost: bool) -> list[int]:
        """By the node's agent; where that does not answer, by Ray."""
        left = await reach.kill_tree(seconds=LOST_SECONDS if lost else AGENT_SECONDS)
        if left is None and not lost:
            await self._kill_by_ray(member)
        return left or []

    async def _kill_by_ray(self, member: RunnerHandle) -> None:
        if await self._ray_kill(member):
            await asyncio.wait({member.ended}, timeout=kill_tree.KILL_SECONDS)

    async def _ray_kill(self, member: RunnerHandle) -> bool:
        """What is left of the actor; whether Ray has heard of it. Again: nothing."""

        def kill() -> None:
            """In Ray's thread, behind the actor's creation."""
            actor, member.actor = member.actor, None
            if actor is not None:
                self._cluster.ray.kill(actor, no_restart=True)

        try:
            await self._cluster.call(kill)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises: it is lost, and its actors with it
            log.warning("runner.not_told_ray", runner=member.id, reason=f"{type(error).__name__}: {error}")
            return False
        return True

    def _stop_watching(self, member: RunnerHandle) -> None:
        if isinstance(member.reach, Here) and member.reach.is_open:
            self._loop.remove_reader(member.reach.handle)

    async def _end(self, member: RunnerHandle, reason: str, left: list[int]) -> None:
        """Announces it, once all that it has said is told."""
        if left:
            log.error("runner.unkillable", runner=member.id, pids=left, seconds=kill_tree.KILL_SECONDS)
            reason = f"{reason}; processes {left} could not be killed"
        if member.connection is not None and member.intake is not None:
            member.connection.closed = None
            member.connection.drain()
            await member.intake.settled()
        self._announce(member, reason)
        await self._ray_kill(member)

    def _announce(self, member: RunnerHandle, reason: str) -> None:
        """Again: nothing."""
        if member.id not in self._members:
            return
        if member.connection is not None:
            member.connection.closed = None
            member.connection.drain()
            member.connection.close()
        self._stop_watching(member)
        if member.reach is not None:
            member.reach.close()
        self._gone(member, reason)
