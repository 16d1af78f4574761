"""One runner as the driver knows it, and the two ways to reach its process: on this machine, and elsewhere."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.processes import kill_tree
from governor.tasks.cluster.cluster import demand
from governor.tasks.protocol import claims

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from governor.tasks.cluster.cluster import Cluster
    from governor.tasks.ports import Hold
    from governor.tasks.protocol.wire import Hello
    from governor.tasks.runners.channel import RunnerConnection
    from governor.tasks.runners.remote_files import Intake
    from governor.tasks.scheduling.events import Shape

AGENT_SECONDS: Final = 10.0
"""For a node agent to start and to answer."""
LOST_SECONDS: Final = 1.0
"""For the agent of a node whose raylet is gone: the machine, and what runs on it, may still be there."""
REMIND_SECONDS: Final = (0.002, 0.1)
"""Between two signals for what a runner has not heard: at first, and at most; each time twice as long."""

log = logs.get_logger()


def _longer(pause: float) -> float:
    return min(2 * pause, REMIND_SECONDS[1])


class Here:
    """A runner on this machine: its pidfd, and its pipe. Raises OSError when it is dead."""

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        handle = hello.birth.open()
        if handle is None:
            raise ProcessLookupError(hello.pid)
        self.handle = handle
        try:
            self._claims = claims.open_claims(hello.pid, hello.claims)
        except OSError:
            os.close(handle)
            raise
        self._reminder: asyncio.TimerHandle | None = None
        self.is_open = True

    def take_back(self, tell: Callable[[tuple[int, ...]], None]) -> None:
        """Tells which tickets were taken back, at once."""
        tell(claims.take_back(self._claims) if self.is_open else ())

    def cancel(self, ticket: int, tell: Callable[[tuple[int, ...]], None]) -> None:
        """Takes back first: what is behind the cancelled attempt is not to begin."""
        self.take_back(tell)
        if self.is_open:
            claims.ask_to_end(self._hello.pid, self._hello.cancels, ticket, self.handle)
            self._remind_in(REMIND_SECONDS[0])

    def kill_tree(self) -> list[int]:
        """Blocks until all are dead, also what it has left behind; the pids that live on."""
        return kill_tree.kill_tree(self._hello.pid, self.handle, self._hello.mark)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            os.close(self.handle)
            os.close(self._claims)
            if self._reminder is not None:
                self._reminder.cancel()

    def _remind_in(self, pause: float) -> None:
        if self._reminder is not None:
            self._reminder.cancel()
        self._reminder = asyncio.get_running_loop().call_later(pause, self._remind, pause)

    def _remind(self, paused: float) -> None:
        if claims.remind(self._hello.pid, self._hello.cancels, self.handle):
            self._remind_in(_longer(paused))


class Elsewhere:
    """A runner on another node, reached through that node's agent. `hold` keeps a task until it has ended."""

    def __init__(self, hello: Hello, cluster: Cluster, hold: Hold) -> None:
        self._hello = hello
        self._cluster = cluster
        self._calls: set[asyncio.Task[None]] = set()
        self._keep = hold
        self._hold(self._warm())

    def take_back(self, tell: Callable[[tuple[int, ...] | None], None]) -> None:
        """Tells which tickets were taken back, when the agent has answered; None where nobody knows."""
        self._hold(self._taken(tell, "take_back", self._hello.claims))

    def cancel(self, ticket: int, tell: Callable[[tuple[int, ...] | None], None]) -> None:
        """In one call: two might overtake each other."""
        self._hold(self._cancelled(ticket, tell))

    async def kill_tree(self, *, seconds: float = AGENT_SECONDS) -> list[int] | None:
        """The pids that live on; None where nobody answers. An agent that turns out to be dead is replaced once."""
        end = time.monotonic() + seconds
        left: list[int] | None = None
        for _ in range(2):
            if left is None and (rest := end - time.monotonic()) > 0:
                left = await self._ask("kill_tree", self._hello.mark, seconds=rest)
        return left

    def close(self) -> None:
        """Answers that are still on their way are about a dead runner."""
        for call in self._calls:
            call.cancel()

    async def _warm(self) -> None:
        """An agent takes a second to start: not at the first deadline."""
        await self._ask("ready")

    async def _taken(
        self, tell: Callable[[tuple[int, ...] | None], None], method: str, *arguments: int
    ) -> None:
        """Asked once: an agent that fails may have taken tickets out of the pipe before."""
        taken = await self._ask(method, *arguments)
        tell(None if taken is None else tuple(taken))

    async def _cancelled(self, ticket: int, tell: Callable[[tuple[int, ...] | None], None]) -> None:
        await self._taken(tell, "cancel", self._hello.claims, self._hello.cancels, ticket)
        pause = REMIND_SECONDS[0]
        await asyncio.sleep(pause)
        while await self._ask("remind", self._hello.cancels):
            pause = _longer(pause)
            await asyncio.sleep(pause)

    async def _ask(self, method: str, *arguments: int, seconds: float = AGENT_SECONDS) -> Any:
        """None where nobody answers."""
        hello = self._hello
        process = (hello.birth,) if method != "ready" else ()
        try:
            async with asyncio.timeout(seconds):
                return await self._cluster.ask_agent(hello.node, method, *process, *arguments)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            log.warning("node.unanswered", node=hello.host, method=method, reason=reason)
            return None

    def _hold(self, call: Coroutine[Any, Any, None]) -> None:
        task = self._keep(call, f"node.{self._hello.host}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)


@dataclass(slots=True, eq=False)
class RunnerHandle:
    """One runner; `ended` is the end of its one Ray call."""

    id: int
    shape: Shape
    actor: Any = None
    ended: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    hello: Hello | None = None
    connection: RunnerConnection | None = None
    reach: Here | Elsewhere | None = None
    intake: Intake | None = None
    number: int = 0
    """In its mark: no two that live have the same."""
    planned: str | None = None
    """The node that it is to be on; Ray may know better."""
    exit_code: int | None = None
    killing: str | None = None
    lost: bool = False
    """Whether it has ended with its node."""
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
            options["memory"] = (
                1  # byte: actors that hold nothing at all Ray puts anywhere, whatever it is told
            )
        elif nodes > 1:
            options["scheduling_strategy"] = "SPREAD"
        return {**options, "resources": wanted}

    def why_dead(self, told: str) -> str:
        """What is known about a death that was not ours, in one line."""
        if self.hello is None:
            lines = [line.strip() for line in told.splitlines() if line.strip()]
            return f"the runner died before it was ready: {' '.join(lines)[-500:] or 'Ray does not say why'}"
        if self.lost:
            return f"the node {self.hello.host} was lost"
        who = f"the runner's process {self.hello.pid}"
        if self.exit_code is not None:
            return f"{who} ended by os._exit({self.exit_code})"
        if "memory" in told and "OOM" not in told:
            return f"{who} was killed by Ray: {' '.join(told.split())[:500]}"
        return f"{who} was killed by a signal or crashed in native code"
