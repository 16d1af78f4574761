"""The runners of a driver: Ray actors, and the messages on their streams; `deaths` holds their termination.

Rules:
1. Every runner that was started ends in exactly one `RunnerGone`, whether we killed it or not.
2. Messages of a runner reach the listener in the order in which it sent them, its end last: everything that it has
   written is read before.
3. Nothing here blocks: calls into Ray run in Ray's thread, terminations in threads of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from governor import logs
from governor.processes import kill_tree
from governor.tasks.protocol import ticket_pipe
from governor.tasks.protocol.wire import (
    Begun,
    Bundle,
    Hello,
    Leaving,
    Loading,
    LogLine,
    Over,
    StateUpdate,
    WorkItem,
)
from governor.tasks.runner_process.runner import Runner
from governor.tasks.runners import remote_files
from governor.tasks.runners.channel import RunnerListener
from governor.tasks.runners.deaths import Deaths
from governor.tasks.runners.handle import LocalProcess, RemoteProcess, RunnerHandle
from governor.tasks.scheduling.events import RunnerGone, RunnerReady, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from governor.tasks.cluster.cluster import Cluster
    from governor.tasks.protocol.wire import FromRunner
    from governor.tasks.runners.channel import RunnerConnection

log = logs.get_logger()


class Listener(Protocol):
    """Receives the events of runners."""

    def runner_changed(self, event: RunnerReady | RunnerGone) -> None:
        """A runner is ready, or has exited."""

    def runner_reported(
        self, runner: int, messages: Sequence[Begun | Over | Loading | LogLine | StateUpdate], now: float
    ) -> None:
        """All messages of one read, in order; `at` is in the driver's clock."""

    def runner_revoked(self, runner: int, tickets: tuple[int, ...]) -> None:
        """These attempts were taken back."""


class Runners:
    """All runners of this driver.

    Args:
        run: uid of the run, for user code. run_folder: its files. socket_folder: of the unix socket.
        import_path: folders that runners put in front of ``sys.path``.
        mark: process mark of the daemon's child that owns them; their own marks are derived from it.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        run: str,
        run_folder: Path,
        socket_folder: Path,
        import_path: Sequence[str],
        mark: int = kill_tree.UNMARKED,
    ) -> None:
        self.ids = count()
        self.listener: Listener | None = None
        self._cluster = cluster
        self._run = run
        self._mark = mark or kill_tree.new_child_mark()
        self._folder = run_folder
        self._import_path = list(import_path)
        self._handles: dict[int, RunnerHandle] = {}
        self._closing = False
        self._deaths = Deaths(cluster=cluster, handles=self._handles, gone=self._gone)
        self._files = ThreadPoolExecutor(max_workers=2, thread_name_prefix="files")
        self._loop = asyncio.get_running_loop()
        self._secret = secrets.token_bytes(32)
        self._marker = f".governor-{secrets.token_hex(8)}"
        (run_folder / self._marker).touch()
        host = "127.0.0.1" if cluster.own is None else cluster.own.host
        self._connections = RunnerListener(
            folder=socket_folder, host=host, secret=self._secret, on_runner=self._accept_runner
        )
        actor: Any = cluster.ray.remote(Runner)
        self._actor = actor

    def start(self, runner: int, shape: Shape) -> None:
        """Ends in RunnerReady or RunnerGone; waits in Ray's queue while its resources are in use. Does nothing once
        `close` has begun.
        """
        if self._closing:
            return
        taken = Counter(handle.node for handle in self._handles.values() if not handle.shape)
        planned = None if shape else self._cluster.next_node(taken)
        handle = RunnerHandle(id=runner, shape=shape, planned=planned, number=self._free_number())
        self._handles[runner] = handle
        self._deaths.track(handle, self._start(handle), "start")

    def _free_number(self) -> int:
        """The lowest unused number: numbers in marks are reused, and two running runners must not share one."""
        taken = {handle.number for handle in self._handles.values()}
        return next(number for number in count() if number not in taken)

    def send(self, runner: int, work_items: Sequence[WorkItem]) -> None:
        """Sends a bundle to an idle runner. If that has exited, its `RunnerGone` follows. Raises ValueError for more than
        `ticket_pipe.MOST` work items.
        """
        if len(work_items) > ticket_pipe.MOST:
            raise ValueError(f"a bundle of {len(work_items)} attempts: {ticket_pipe.MOST} are the most")
        handle = self._handles.get(runner)
        if handle is None or handle.hello is None:
            return
        if handle.hello.shares_folder or not remote_files.needs_files(work_items):
            self._send(handle, work_items)
        else:
            self._deaths.track(handle, self._send_with_files(handle, work_items), "inputs")

    def revoke(self, runner: int) -> None:
        """Takes back attempts that the runner has not begun, then calls `runner_revoked`; on this machine at once."""
        handle = self._handles.get(runner)
        if handle is not None and handle.process is not None:
            handle.process.take_back(lambda tickets: self._revoked(runner, tickets))

    def cancel(self, runner: int, ticket: int) -> None:
        """Takes back attempts that the runner has not begun, then raises TaskCancelled in this one, if it is running."""
        handle = self._handles.get(runner)
        if handle is not None and handle.process is not None:
            handle.process.cancel(ticket, lambda tickets: self._revoked(runner, tickets))

    def kill(self, runner: int, reason: str) -> None:
        """Ends in RunnerGone once the process and its descendants have exited."""
        handle = self._handles.get(runner)
        if handle is not None:
            self._deaths.kill(handle, reason)

    def pid(self, runner: int) -> int:
        handle = self._handles.get(runner)
        return handle.hello.pid if handle and handle.hello else 0

    def node(self, runner: int) -> str:
        handle = self._handles.get(runner)
        return handle.hello.host if handle and handle.hello else ""

    async def close(self) -> None:
        """Kills every runner and waits for its exit."""
        self._closing = True
        for runner in list(self._handles):
            self.kill(runner, "the scheduler ends")
        await self._deaths.close()
        self._connections.close()
        self._files.shutdown(wait=False, cancel_futures=True)
        (self._folder / self._marker).unlink(missing_ok=True)

    def _send(self, handle: RunnerHandle, work_items: Sequence[WorkItem]) -> None:
        if handle.connection is None:
            return
        try:
            handle.connection.send([Bundle(list(work_items))])
        except Exception as error:  # noqa: BLE001  # whatever encoding raises: nothing was sent
            log.warning("runner.send_failed", runner=handle.id, reason=f"{type(error).__name__}: {error}")
            handle.connection.send([Bundle(list(map(remote_files.sendable, work_items)))])

    async def _send_with_files(self, handle: RunnerHandle, work_items: Sequence[WorkItem]) -> None:
        read = partial(remote_files.with_files, folder=self._folder)
        found = await self._loop.run_in_executor(self._files, lambda: list(map(read, work_items)))
        self._send(handle, found)

    # -- start and end of one runner ------------------------------------------------------------------------

    async def _start(self, handle: RunnerHandle) -> None:
        try:
            await self._cluster.call(lambda: self._create(handle))
        except Exception as error:  # noqa: BLE001  # whatever Ray raises, the runner did not start
            refused = f"Ray refused the runner: {type(error).__name__}: {error}"
            self._deaths.start_failed(handle, handle.killing or refused)

    def _create(self, handle: RunnerHandle) -> None:
        """In Ray's thread."""
        if handle.killing is not None:
            raise RuntimeError(handle.killing)
        options = handle.options(nodes=len(self._cluster.nodes))
        handle.actor = self._actor.options(**options).remote(
            run=self._run, run_folder=str(self._folder), import_path=self._import_path
        )
        serving = handle.actor.serve.remote(
            path=self._connections.path,
            address=self._connections.address,
            secret=self._secret,
            runner=handle.id,
            marker=self._marker,
            mark=kill_tree.mark_of_runner(self._mark, handle.number),
        )

        def on_done(outcome: Any) -> None:
            error = outcome.exception()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(
                    self._deaths.call_ended, handle, "" if error is None else str(error)
                )

        serving.future().add_done_callback(on_done)

    def _accept_runner(self, connection: RunnerConnection, hello: Hello) -> None:
        """A runner is connected and authenticated."""
        handle = self._handles.get(hello.runner)
        if handle is None or handle.hello is not None:
            connection.close()
            return
        handle.hello, handle.connection = hello, connection
        connection.on_documents = lambda documents: self._on_documents(handle, documents)
        if not hello.shares_folder:
            handle.file_receiver = remote_files.FileReceiver(
                folder=self._folder,
                threads=self._files,
                deliver=lambda documents: self._deliver(handle, documents),
                track=partial(self._deaths.track, handle),
            )
        connection.on_closed = lambda: self._deaths.stream_ended(handle)
        if connection.local and connection.peer_pid() == hello.pid:
            try:
                handle.process = LocalProcess(hello)
            except OSError:
                self._deaths.exited(handle)
                return
        else:
            handle.process = RemoteProcess(hello, self._cluster, partial(self._deaths.track, handle))
        self._deaths.watch(handle)
        if hello.mark == kill_tree.UNMARKED:
            log.warning("runner.unmarked", runner=handle.id, node=hello.host)
        if self.listener is not None and handle.killing is None:
            self.listener.runner_changed(RunnerReady(handle.id, time.monotonic()))

    def _gone(self, handle: RunnerHandle, reason: str) -> None:
        del self._handles[handle.id]
        if self.listener is not None:
            self.listener.runner_changed(RunnerGone(handle.id, time.monotonic(), reason, handle.lost))

    # -- messages -------------------------------------------------------------------------------------------

    def _on_documents(self, handle: RunnerHandle, documents: list[FromRunner]) -> None:
        """Receives the documents of one read; those of remote runners get our time before they may have to wait."""
        if not isinstance(handle.process, LocalProcess):
            now = time.monotonic()
            documents = [
                _received_at(each, now) if isinstance(each, Begun | Over) else each for each in documents
            ]
        if handle.file_receiver is None:
            self._deliver(handle, documents)
        else:
            handle.file_receiver.receive(documents)

    def _deliver(self, handle: RunnerHandle, documents: list[FromRunner]) -> None:
        news: list[Begun | Over | Loading | LogLine | StateUpdate] = []
        for document in documents:
            match document:
                case Begun() | Over() | Loading() | LogLine() | StateUpdate():
                    news.append(document)
                case Leaving(exit_code):
                    handle.exit_code = exit_code
        if news and self.listener is not None:
            self.listener.runner_reported(handle.id, news, time.monotonic())

    def _revoked(self, runner: int, tickets: tuple[int, ...] | None) -> None:
        if runner not in self._handles:
            return
        if tickets is None:  # some may be out of the pipe, and would never be executed
            self.kill(runner, "its node did not report which attempts it has taken back")
        elif self.listener is not None:
            self.listener.runner_revoked(runner, tickets)


def _received_at(message: Begun | Over, now: float) -> Begun | Over:
    """The same message with the time of its arrival, in our clock."""
    return msgspec.structs.replace(message, at=now)
