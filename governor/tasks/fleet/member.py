"""One runner as the driver knows it, and the two ways to reach its process: on this machine, and elsewhere."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.tasks.exchange import claims, reaper
from governor.tasks.fleet.cluster import demand

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.tasks.exchange.wire import Hello
    from governor.tasks.fleet.channel import Connection
    from governor.tasks.fleet.cluster import Cluster
    from governor.tasks.fleet.remote_files import Intake
    from governor.tasks.planning.story import Shape

AGENT_SECONDS: Final = 10.0
"""For a node agent to start and to answer."""
LOST_SECONDS: Final = 1.0
"""For the agent of a node whose raylet is gone: the machine, and what runs on it, may still be there."""

log = logs.get_logger()


class Here:
    """A runner on this machine: its pidfd and its pipe. Raises OSError when it is dead."""

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        handle = reaper.open_pid(hello.pid, hello.created)
        if handle is None:
            raise ProcessLookupError(hello.pid)
        self.handle = handle
        try:
            self._claims = claims.open_claims(hello.pid, hello.claims)
        except OSError:
            os.close(handle)
            raise
        self.is_open = True

    def take_back(self, tell: Callable[[tuple[int, ...]], None]) -> None:
        """Tells which tickets were taken back, at once."""
        tell(claims.take_back(self._claims) if self.is_open else ())

    def cancel(self, ticket: int, tell: Callable[[tuple[int, ...]], None]) -> None:
        """Takes back first: what is behind the cancelled attempt is not to begin."""
        self.take_back(tell)
        if self.is_open:
            claims.ask_to_end(self._hello.pid, self._hello.cancels, ticket, self.handle)

    def kill_tree(self) -> list[int]:
        """Blocks until all are dead; the pids that live on."""
        return reaper.kill_tree(self._hello.pid, self.handle)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            os.close(self.handle)
            os.close(self._claims)


class Elsewhere:
    """A runner on another node, reached through that node's agent."""

    def __init__(self, hello: Hello, cluster: Cluster, loop: asyncio.AbstractEventLoop) -> None:
        self._hello = hello
        self._cluster = cluster
        self._loop = loop
        self._calls: set[asyncio.Task[Any]] = set()
        self._hold(self._call("ready"))  # it takes a second to start: not at the first deadline

    def take_back(self, tell: Callable[[tuple[int, ...]], None]) -> None:
        """Tells which tickets were taken back, when the agent has answered."""

        async def ask() -> None:
            tell(tuple(await self._of_runner("take_back", self._hello.claims) or ()))

        self._hold(ask())

    def cancel(self, ticket: int, tell: Callable[[tuple[int, ...]], None]) -> None:
        """In one call: two might overtake each other."""

        async def ask() -> None:
            hello = self._hello
            tell(tuple(await self._of_runner("cancel", hello.claims, hello.cancels, ticket) or ()))

        self._hold(ask())

    async def kill_tree(self, *, seconds: float = AGENT_SECONDS) -> list[int] | None:
        """The pids that live on; None where nobody answers."""
        left: list[int] | None = await self._of_runner("kill_tree", seconds=seconds)
        return left

    def close(self) -> None:
        """Answers that are still on their way are about a dead runner."""
        for call in self._calls:
            call.cancel()

    async def _of_runner(self, method: str, *arguments: Any, seconds: float = AGENT_SECONDS) -> Any:
        return await self._call(method, self._hello.pid, self._hello.created, *arguments, seconds=seconds)

    async def _call(self, method: str, *arguments: Any, seconds: float = AGENT_SECONDS) -> Any:
        """An agent that turns out to be dead is replaced once. None where nobody answers."""
        node = self._hello.node
        try:
            async with asyncio.timeout(seconds):
                try:
                    return await self._cluster.ask_agent(node, method, *arguments)
                except Exception:  # noqa: BLE001  # whatever Ray raises: the next call goes to a new agent
                    return await self._cluster.ask_agent(node, method, *arguments)
        except Exception as error:  # noqa: BLE001  # as above
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            log.warning("node.unanswered", node=self._hello.host, method=method, reason=reason)
            return None

    def _hold(self, call: Any) -> None:
        task: asyncio.Task[Any] = self._loop.create_task(call, name=f"node.{self._hello.host}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)


@dataclass(slots=True, eq=False)
class Member:
    """One runner; `ended` is the end of its one Ray call."""

    id: int
    shape: Shape
    actor: Any = None
    ended: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    hello: Hello | None = None
    connection: Connection | None = None
    reach: Here | Elsewhere | None = None
    intake: Intake | None = None
    planned: str | None = None
    """The node that it is to be on; Ray may know better."""
    exit_code: int | None = None
    killing: str | None = None
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

    def why_dead(self, told: str, node_is_lost: bool) -> str:  # noqa: FBT001  # one caller
        """What is known about a death that was not ours, in one line."""
        if self.hello is None:
            lines = [line.strip() for line in told.splitlines() if line.strip()]
            return f"the runner died before it was ready: {' '.join(lines)[-500:] or 'Ray does not say why'}"
        if node_is_lost:
            return f"the node {self.hello.host} was lost"
        who = f"the runner's process {self.hello.pid}"
        if self.exit_code is not None:
            return f"{who} ended by os._exit({self.exit_code})"
        if "memory" in told and "OOM" not in told:
            return f"{who} was killed by Ray: {' '.join(told.split())[:500]}"
        return f"{who} was killed by a signal or crashed in native code"
