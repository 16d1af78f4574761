"""The process of a connected runner, and the two ways to control it: on this machine, and on other nodes."""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from governor import logs
from governor.processes import kill_tree
from governor.tasks.protocol import ticket_pipe
from governor.tasks.protocol.wire import Begun, Over
from governor.tasks.runners.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Executor

    from governor.tasks.cluster.cluster import Cluster
    from governor.tasks.ports import TrackTask
    from governor.tasks.protocol.wire import FromRunner, Hello
    from governor.tasks.runners.channel import RunnerConnection
    from governor.tasks.runners.remote_files import FileReceiver

AGENT_SECONDS: Final = 10.0
"""For a node agent to start and to answer."""
LOST_SECONDS: Final = 1.0
"""For the agent of a node whose raylet is gone: the machine and its processes may still run."""
SIGNAL_AGAIN_SECONDS: Final = (0.002, 0.1)
"""Between two signals for a cancellation that a runner has not read: at first, and at most; doubles each time."""

log = logs.get_logger()


class _ConnectedProcess(ABC):
    """What a connected runner has. `track` runs a coroutine until it has ended.

    `state` is that of the runner now. `file_receiver`: for a runner that does not see the run's folder; `exit_code`: that
    of an `os._exit` of user code; `lost`: its node was lost.
    """

    state: State

    def __init__(self, connection: RunnerConnection, hello: Hello, track: TrackTask) -> None:
        self.connection = connection
        self.hello = hello
        self._track = track
        self._calls: set[asyncio.Task[None]] = set()
        self.file_receiver: FileReceiver | None = None
        self.exit_code: int | None = None
        self.lost = False

    def close(self) -> None:
        """Cancels pending calls: they are about a runner that has exited."""
        for call in self._calls:
            call.cancel()

    def _start_call(self, call: Coroutine[Any, Any, None]) -> None:
        task = self._track(call, f"node.{self.hello.host}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    @abstractmethod
    async def _signal_again(self) -> bool:
        """As `ticket_pipe.signal_again`."""

    async def _signal_until_read(self) -> None:
        pause, longest = SIGNAL_AGAIN_SECONDS
        await asyncio.sleep(pause)
        while await self._signal_again():
            pause = min(2 * pause, longest)
            await asyncio.sleep(pause)


class LocalProcess(_ConnectedProcess):
    """A runner on this machine: its pidfd and its ticket pipe. Raises OSError if it has exited."""

    state = State.LOCAL

    def __init__(
        self,
        connection: RunnerConnection,
        hello: Hello,
        track: TrackTask,
        *,
        threads: Executor,
        on_exit: Callable[[], None],
    ) -> None:
        super().__init__(connection, hello, track)
        pidfd = hello.identity.open()
        if pidfd is None:
            raise ProcessLookupError(hello.pid)
        self._pidfd = pidfd
        try:
            self._ticket_pipe = ticket_pipe.open_pipe(hello.pid, hello.ticket_pipe)
        except OSError:
            os.close(pidfd)
            raise
        self._threads = threads
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pidfd, self._exited)

    def take_back(self, on_revoked: Callable[[tuple[int, ...] | None], None]) -> None:
        """Calls `on_revoked` at once with the tickets that were taken back."""
        on_revoked(ticket_pipe.take_back(self._ticket_pipe))

    def cancel(self, ticket: int, on_revoked: Callable[[tuple[int, ...] | None], None]) -> None:
        """Takes back first: attempts behind the cancelled one must not begin."""
        self.take_back(on_revoked)
        ticket_pipe.request_cancel(self.hello.pid, self.hello.cancel_pipe, ticket, self._pidfd)
        self._start_call(self._signal_until_read())

    async def kill_tree(self) -> list[int] | None:
        """Returns when the process and all that it has left behind have exited, with the pids that survive; None if that
        cannot be seen. Its exit is not reported from now on.
        """
        self._loop.remove_reader(self._pidfd)
        kill = partial(kill_tree.kill_tree, self.hello.pid, self._pidfd, self.hello.mark)
        try:
            return await self._loop.run_in_executor(self._threads, kill)
        except OSError as error:  # no descriptors are left to look at the tree
            log.exception("runner.kill_unverified", runner=self.hello.runner, reason=str(error))
            return None

    def in_our_clock(self, documents: list[FromRunner]) -> list[FromRunner]:
        return documents

    def close(self) -> None:
        super().close()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        os.close(self._ticket_pipe)

    def _exited(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._on_exit()

    async def _signal_again(self) -> bool:
        return ticket_pipe.signal_again(self.hello.pid, self.hello.cancel_pipe, self._pidfd)


class RemoteProcess(_ConnectedProcess):
    """A runner on another node, controlled through that node's agent."""

    state = State.REMOTE

    def __init__(
        self, connection: RunnerConnection, hello: Hello, track: TrackTask, *, cluster: Cluster
    ) -> None:
        super().__init__(connection, hello, track)
        self._cluster = cluster
        self._start_call(self._warm())

    def take_back(self, on_revoked: Callable[[tuple[int, ...] | None], None]) -> None:
        """Calls `on_revoked` when the agent has answered; with None if it did not."""
        self._start_call(self._revoke(on_revoked, "take_back", self.hello.ticket_pipe))

    def cancel(self, ticket: int, on_revoked: Callable[[tuple[int, ...] | None], None]) -> None:
        """Takes back and cancels in one call: two calls might overtake each other."""
        self._start_call(self._cancelled(ticket, on_revoked))

    async def kill_tree(self) -> list[int] | None:
        """As on this machine. An agent that turns out to be dead is replaced once. On a lost node, whether it answers makes no difference."""
        self.lost = self.lost or await self._cluster.is_lost(self.hello.node)
        end = time.monotonic() + (LOST_SECONDS if self.lost else AGENT_SECONDS)
        left: list[int] | None = None
        for _ in range(2):
            if left is None and (rest := end - time.monotonic()) > 0:
                left = await self._ask("kill_tree", self.hello.mark, seconds=rest)
        return [] if left is None and self.lost else left

    def in_our_clock(self, documents: list[FromRunner]) -> list[FromRunner]:
        """The same messages with the time of their arrival."""
        now = time.monotonic()
        return [
            msgspec.structs.replace(each, at=now) if isinstance(each, Begun | Over) else each
            for each in documents
        ]

    async def _warm(self) -> None:
        """Starts the agent in advance: that takes a second, which the first deadline does not have."""
        await self._ask("ready")

    async def _revoke(
        self, on_revoked: Callable[[tuple[int, ...] | None], None], method: str, *arguments: int
    ) -> None:
        """Calls once: an agent that fails may have taken tickets out of the pipe before."""
        taken = await self._ask(method, *arguments)
        on_revoked(None if taken is None else tuple(taken))

    async def _cancelled(self, ticket: int, on_revoked: Callable[[tuple[int, ...] | None], None]) -> None:
        await self._revoke(on_revoked, "cancel", self.hello.ticket_pipe, self.hello.cancel_pipe, ticket)
        await self._signal_until_read()

    async def _signal_again(self) -> bool:
        return bool(await self._ask("signal_again", self.hello.cancel_pipe))

    async def _ask(self, method: str, *arguments: int, seconds: float = AGENT_SECONDS) -> Any:
        """The answer of the node's agent; None without one."""
        process = (self.hello.identity,) if method != "ready" else ()
        try:
            async with asyncio.timeout(seconds):
                return await self._cluster.ask_agent(self.hello.node, method, *process, *arguments)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            log.warning("node.agent_unavailable", node=self.hello.host, method=method, reason=reason)
            return None


RunnerProcess: TypeAlias = LocalProcess | RemoteProcess
