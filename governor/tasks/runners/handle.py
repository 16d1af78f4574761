"""One runner as the driver knows it, and the two ways to control its process: on this machine, and on other nodes."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.processes import kill_tree
from governor.tasks.cluster.cluster import demand
from governor.tasks.protocol import ticket_pipe

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from governor.tasks.cluster.cluster import Cluster
    from governor.tasks.ports import TrackTask
    from governor.tasks.protocol.wire import Hello
    from governor.tasks.runners.channel import RunnerConnection
    from governor.tasks.runners.remote_files import FileReceiver
    from governor.tasks.scheduling.events import Shape

AGENT_SECONDS: Final = 10.0
"""For a node agent to start and to answer."""
LOST_SECONDS: Final = 1.0
"""For the agent of a node whose raylet is gone: the machine and its processes may still run."""
SIGNAL_AGAIN_SECONDS: Final = (0.002, 0.1)
"""Between two signals for a cancellation that a runner has not read: at first, and at most; doubles each time."""

log = logs.get_logger()


def _longer(pause: float) -> float:
    return min(2 * pause, SIGNAL_AGAIN_SECONDS[1])


class LocalProcess:
    """A runner on this machine: its pidfd and its ticket pipe. Raises OSError if it has exited."""

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        pidfd = hello.identity.open()
        if pidfd is None:
            raise ProcessLookupError(hello.pid)
        self.pidfd = pidfd
        try:
            self._ticket_pipe = ticket_pipe.open_pipe(hello.pid, hello.ticket_pipe)
        except OSError:
            os.close(pidfd)
            raise
        self._signal_timer: asyncio.TimerHandle | None = None
        self.is_open = True

    def take_back(self, on_revoked: Callable[[tuple[int, ...]], None]) -> None:
        """Calls `on_revoked` at once with the tickets that were taken back."""
        on_revoked(ticket_pipe.take_back(self._ticket_pipe) if self.is_open else ())

    def cancel(self, ticket: int, on_revoked: Callable[[tuple[int, ...]], None]) -> None:
        """Takes back first: attempts behind the cancelled one must not begin."""
        self.take_back(on_revoked)
        if self.is_open:
            ticket_pipe.request_cancel(self._hello.pid, self._hello.cancel_pipe, ticket, self.pidfd)
            self._signal_again_in(SIGNAL_AGAIN_SECONDS[0])

    def kill_tree(self) -> list[int]:
        """Blocks until the process and all that it has left behind have exited; returns the pids that survive."""
        return kill_tree.kill_tree(self._hello.pid, self.pidfd, self._hello.mark)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            os.close(self.pidfd)
            os.close(self._ticket_pipe)
            if self._signal_timer is not None:
                self._signal_timer.cancel()

    def _signal_again_in(self, pause: float) -> None:
        if self._signal_timer is not None:
            self._signal_timer.cancel()
        self._signal_timer = asyncio.get_running_loop().call_later(pause, self._signal_again, pause)

    def _signal_again(self, paused: float) -> None:
        if ticket_pipe.signal_again(self._hello.pid, self._hello.cancel_pipe, self.pidfd):
            self._signal_again_in(_longer(paused))


class RemoteProcess:
    """A runner on another node, controlled through that node's agent. `track` runs a coroutine until it has ended."""

    def __init__(self, hello: Hello, cluster: Cluster, track: TrackTask) -> None:
        self._hello = hello
        self._cluster = cluster
        self._calls: set[asyncio.Task[None]] = set()
        self._track = track
        self._start_call(self._warm())

    def take_back(self, on_revoked: Callable[[tuple[int, ...] | None], None]) -> None:
        """Calls `on_revoked` with the tickets that were taken back, when the agent has answered; with None if it did not."""
        self._start_call(self._revoke(on_revoked, "take_back", self._hello.ticket_pipe))

    def cancel(self, ticket: int, on_revoked: Callable[[tuple[int, ...] | None], None]) -> None:
        """Takes back and cancels in one call: two calls might overtake each other."""
        self._start_call(self._cancelled(ticket, on_revoked))

    async def kill_tree(self, *, seconds: float = AGENT_SECONDS) -> list[int] | None:
        """The pids that survive; None without an answer. An agent that turns out to be dead is replaced once."""
        end = time.monotonic() + seconds
        left: list[int] | None = None
        for _ in range(2):
            if left is None and (rest := end - time.monotonic()) > 0:
                left = await self._ask("kill_tree", self._hello.mark, seconds=rest)
        return left

    def close(self) -> None:
        """Cancels pending calls: they are about a runner that has exited."""
        for call in self._calls:
            call.cancel()

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
        await self._revoke(on_revoked, "cancel", self._hello.ticket_pipe, self._hello.cancel_pipe, ticket)
        pause = SIGNAL_AGAIN_SECONDS[0]
        await asyncio.sleep(pause)
        while await self._ask("signal_again", self._hello.cancel_pipe):
            pause = _longer(pause)
            await asyncio.sleep(pause)

    async def _ask(self, method: str, *arguments: int, seconds: float = AGENT_SECONDS) -> Any:
        """The answer of the node's agent; None without one."""
        hello = self._hello
        process = (hello.identity,) if method != "ready" else ()
        try:
            async with asyncio.timeout(seconds):
                return await self._cluster.ask_agent(hello.node, method, *process, *arguments)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            log.warning("node.agent_unavailable", node=hello.host, method=method, reason=reason)
            return None

    def _start_call(self, call: Coroutine[Any, Any, None]) -> None:
        task = self._track(call, f"node.{self._hello.host}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)


@dataclass(slots=True, eq=False)
class RunnerHandle:
    """One runner; `ended` is done when its one Ray call has ended."""

    id: int
    shape: Shape
    actor: Any = None
    ended: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    hello: Hello | None = None
    connection: RunnerConnection | None = None
    process: LocalProcess | RemoteProcess | None = None
    file_receiver: FileReceiver | None = None
    number: int = 0
    """Part of its process mark: unique among running runners."""
    planned: str | None = None
    """The preferred node; Ray may choose another."""
    exit_code: int | None = None
    killing: str | None = None
    lost: bool = False
    """Whether its node was lost."""
    end: asyncio.Task[None] | None = None

    @property
    def node(self) -> str:
        return self.hello.node if self.hello is not None else self.planned or ""

    def options(self, *, nodes: int) -> dict[str, Any]:
        """Ray's options for its actor, in a cluster of so many nodes."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415  # Ray is imported late

        wanted = demand(self.shape)
        options: dict[str, Any] = {
            "num_cpus": wanted.pop("CPU", 0),
            "num_gpus": wanted.pop("GPU", 0),
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        if "memory" in wanted:
            options["memory"] = int(wanted.pop("memory"))
        if self.planned is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(self.planned, soft=True)
            options["memory"] = 1  # byte: for actors without any resource Ray ignores the strategy
        elif nodes > 1:
            options["scheduling_strategy"] = "SPREAD"
        return {**options, "resources": wanted}

    def exit_reason(self, ray_error: str) -> str:
        """Why the runner exited without being killed by us, in one line."""
        if self.hello is None:
            lines = [line.strip() for line in ray_error.splitlines() if line.strip()]
            return (
                f"the runner exited before it was ready: {' '.join(lines)[-500:] or 'Ray does not say why'}"
            )
        if self.lost:
            return f"the node {self.hello.host} was lost"
        process = f"the runner's process {self.hello.pid}"
        if self.exit_code is not None:
            return f"{process} ended by os._exit({self.exit_code})"
        if "memory" in ray_error and "OOM" not in ray_error:
            return f"{process} was killed by Ray: {' '.join(ray_error.split())[:500]}"
        return f"{process} was killed by a signal or crashed in native code"
