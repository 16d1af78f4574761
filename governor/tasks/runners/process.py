"""The process of a connected runner, and the two ways to control it: on this machine, and on other nodes."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import msgspec

from governor import logs
from governor.processes import kill_tree
from governor.processes.readiness import readable
from governor.tasks.protocol.wire import Begun, Over
from governor.tasks.runners.states import RunnerState

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from governor.tasks.cluster.cluster import Cluster
    from governor.tasks.ports import TrackTask
    from governor.tasks.protocol.ticket_pipe import RunnerControl
    from governor.tasks.protocol.wire import FromRunner, Hello
    from governor.tasks.runners.channel import RunnerConnection
    from governor.tasks.runners.remote_files import FileReceiver

AGENT_SECONDS: Final = 10.0
"""For a node agent to start and to answer."""
LOST_SECONDS: Final = 1.0
"""For the agent of a node whose raylet is gone: the machine and its processes may still run."""
SIGNAL_AGAIN_SECONDS: Final = (0.002, 0.1)
"""Between two signals for a cancellation that a runner has not read: at first, and at most; doubles each time."""
SURELY_EMPTY: Final = 5
"""Looks at a pipe, 62 ms in all: a runner that Python has made ignore the exception puts the ticket back meanwhile."""
LOOK_SECONDS: Final = 60.0
"""How long the pipe is looked at while the attempt has not ended: the exception may come late out of a finalizer."""

_THREADS: Final = ThreadPoolExecutor(max_workers=4, thread_name_prefix="kill")

log = logs.get_logger()


@dataclass(kw_only=True, eq=False)
class _ConnectedProcess(ABC):
    """What a connected runner has.

    Args:
        track: runs a coroutine until it has ended. on_revoked: called with the tickets that were taken back, or with None
            if that is not known. file_receiver: for a runner that does not see the run's folder. exit_code: that of an
            `os._exit` of user code. lost: whether its node was lost. runs_left: about so many runs of what it was sent have not ended.
            leaves_processes: of its last bundle, as `Over` says it.
    """

    connection: RunnerConnection
    hello: Hello
    track: TrackTask
    on_revoked: Callable[[tuple[int, ...] | None], None]
    file_receiver: FileReceiver | None = None
    exit_code: int | None = None
    lost: bool = False
    runs_left: int = 0
    leaves_processes: bool = False
    _calls: set[asyncio.Task[None]] = field(default_factory=set)
    _cancelled: set[int] = field(default_factory=set)
    """Tickets of attempts that were cancelled and have not ended."""

    def count(self, documents: list[FromRunner]) -> None:
        """Of one read."""
        for each in documents:  # threads that a task has left may report behind its end
            if type(each) is Over:
                self.runs_left -= 1
                self._cancelled.discard(each.ticket)
                self.leaves_processes = each.leaves_processes

    def close(self) -> None:
        """Delivers what it has written before its exit, and cancels pending calls: they are about a runner that has exited."""
        self.connection.drain()
        self.connection.close()
        for call in self._calls:
            call.cancel()

    def _start_call(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.track(call, f"node.{self.hello.host}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    @abstractmethod
    async def _signal_again(self) -> bool:
        """Whether the runner had not read its cancel pipe, and was signalled."""

    async def _signal_until_read(self) -> None:
        """Until its pipe was found empty `SURELY_EMPTY` times in a row, and what was cancelled has ended."""
        pause, longest = SIGNAL_AGAIN_SECONDS
        found_empty, end = 0, time.monotonic() + LOOK_SECONDS
        while found_empty < SURELY_EMPTY or (self._cancelled and time.monotonic() < end):
            await asyncio.sleep(pause)
            found_empty = 0 if await self._signal_again() else found_empty + 1
            pause = min(2 * pause, longest)


@dataclass(kw_only=True, eq=False)
class LocalProcess(_ConnectedProcess):
    """A runner on this machine, with what controls it. Raises OSError if it has exited."""

    state: ClassVar = RunnerState.LOCAL
    control: RunnerControl
    on_exit: Callable[[], None]
    _signalling: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        if self.control.pidfd is None or self.control.tickets is None:
            self.control.close()
            raise ProcessLookupError(self.hello.pid)
        self._pidfd = self.control.pidfd
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._exited)

    def take_back(self) -> None:
        """Calls `on_revoked` at once."""
        self.on_revoked(self.control.take_back())

    def cancel(self, ticket: int) -> None:
        """Takes back first: attempts behind the cancelled one must not begin."""
        self._cancelled.add(ticket)
        self.take_back()
        self.control.cancel(ticket)
        if self._signalling is not None:  # one of them sees to all requests
            self._signalling.cancel()
        self._signalling = self._start_call(self._signal_until_read())

    async def kill_tree(self) -> list[int] | None:
        """Returns when the process and all that it has left behind have exited, with the pids that survive; None if that
        cannot be seen. Its exit is not reported from now on.
        """
        self._loop.remove_reader(self._pidfd)
        try:
            return await self._loop.run_in_executor(_THREADS, self.control.kill_tree)
        except OSError as error:  # no descriptors are left to look at the tree
            log.exception("runner.kill_unverified", runner=self.hello.runner, reason=str(error))
            return None

    async def exited(self) -> None:
        """Returns when the process has exited."""
        await readable(self._pidfd)

    def in_our_clock(self, documents: list[FromRunner]) -> list[FromRunner]:
        return documents

    def detach(self) -> tuple[RunnerControl, socket.socket] | None:
        """Lets go of it: what controls it from now on. None if it is not fit for another driver: it has left processes behind,
        or is still being told or asked something.
        """
        if (
            self._calls
            or (self.leaves_processes and kill_tree.descendants(self.hello.pid))
            or (sock := self.connection.detach()) is None
        ):
            return None
        self._loop.remove_reader(self._pidfd)
        return self.control, sock

    def close(self) -> None:
        super().close()
        self._loop.remove_reader(self._pidfd)
        self.control.close()

    def _exited(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self.on_exit()

    async def _signal_again(self) -> bool:
        return self.control.cancel()


@dataclass(kw_only=True, eq=False)
class RemoteProcess(_ConnectedProcess):
    """A runner on another node, controlled through that node's agent."""

    state: ClassVar = RunnerState.REMOTE
    cluster: Cluster

    def __post_init__(self) -> None:
        self._start_call(self._ask("ready"))  # that takes a second, which the first deadline does not have

    def take_back(self) -> None:
        """Calls `on_revoked` when the agent has answered, or has not in time."""
        self._start_call(self._take_back())

    def cancel(self, ticket: int) -> None:
        """Takes back and cancels in one call: two calls might overtake each other."""
        self._cancelled.add(ticket)
        self._start_call(self._take_back(ticket))

    async def kill_tree(self) -> list[int] | None:
        """As on this machine. An agent that turns out to be dead is replaced once; that of a lost node need not answer."""
        self.lost = self.lost or await self.cluster.is_lost(self.hello.node)
        end = time.monotonic() + (LOST_SECONDS if self.lost else AGENT_SECONDS)
        left: list[int] | None = None
        for _ in range(2):
            if left is None and (rest := end - time.monotonic()) > 0:
                left = await self._ask("kill_tree", seconds=rest)
        return [] if left is None and self.lost else left

    async def exited(self) -> None:
        """Returns when its stream has ended."""
        await self.connection.closed.wait()

    def in_our_clock(self, documents: list[FromRunner]) -> list[FromRunner]:
        """The same messages with the time of their arrival."""
        now = time.monotonic()
        return [
            msgspec.structs.replace(each, at=now) if isinstance(each, Begun | Over) else each
            for each in documents
        ]

    async def _take_back(self, *cancelled: int) -> None:
        """Calls once: an agent that fails may have taken tickets out of the pipe before."""
        taken = await self._ask("take_back", *cancelled)
        self.on_revoked(None if taken is None else tuple(taken))
        if cancelled:
            await self._signal_until_read()

    async def _signal_again(self) -> bool:
        return bool(await self._ask("signal_again"))

    async def _ask(self, method: str, *arguments: int, seconds: float = AGENT_SECONDS) -> Any:
        """The answer of the node's agent; None without one."""
        try:
            async with asyncio.timeout(seconds):
                return await self.cluster.ask_agent(self.hello.node, method, self.hello, *arguments)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            log.warning("node.agent_unavailable", node=self.hello.host, method=method, reason=reason)
            return None


RunnerProcess: TypeAlias = LocalProcess | RemoteProcess
