"""One runner as the driver knows it, and the two ways to reach its process: on this machine, and elsewhere."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.tasks import claims, reaper

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.tasks.channel import Connection
    from governor.tasks.cluster import Cluster
    from governor.tasks.story import Shape
    from governor.tasks.wire import Hello

AGENT_SECONDS: Final = 10.0
"""For a node agent to start and to answer; then its node counts as lost."""

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

    def ask_to_end(self, ticket: int) -> None:
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
        self._calls: set[asyncio.Task[None]] = set()

    def take_back(self, tell: Callable[[tuple[int, ...]], None]) -> None:
        """Tells which tickets were taken back, when the agent has answered."""

        async def ask() -> None:
            tell(tuple(await self._call("take_back", self._hello.claims) or ()))

        self._hold(ask())

    def ask_to_end(self, ticket: int) -> None:
        async def ask() -> None:
            await self._call("ask_to_end", self._hello.cancels, ticket)

        self._hold(ask())

    async def kill_tree(self) -> list[int]:
        """The pids that live on; none also where nobody answers: then Ray kills it, or the node is lost."""
        return await self._call("kill_tree") or []

    def close(self) -> None:
        """Nothing is held."""

    async def _call(self, method: str, *arguments: Any) -> Any:
        hello = self._hello
        try:
            async with asyncio.timeout(AGENT_SECONDS):
                return await self._cluster.ask_agent(hello.node, method, hello.pid, hello.created, *arguments)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises: there is no answer
            log.warning(
                "node.unanswered", node=hello.host, method=method, reason=f"{type(error).__name__}: {error}"
            )
            return None

    def _hold(self, call: Any) -> None:
        task: asyncio.Task[None] = self._loop.create_task(call, name=f"node.{self._hello.host}")
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
    exit_code: int | None = None
    killing: str | None = None
    end: asyncio.Task[None] | None = None

    @property
    def node(self) -> str:
        return self.hello.node if self.hello is not None else ""

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
