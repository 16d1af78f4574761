"""The environments of one conductor and who holds them.

Rules:
1. A lease always comes back: by release, by the next turn of the same worker, by the next incarnation of its owner. An
   environment that is still at a request then counts as one that hangs.
2. An environment that hangs is abandoned with its thread and replaced by a fresh one. The threads that still hang are
   counted: at `HUNG_PER_PLACE` for each place the conductor gives itself up, and its successor starts clean.
3. One whose thread has ended is replaced when the next one is asked for.
4. `acquire` waits only for a place that is being filled; when all are leased it says `Busy` at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.episodes.remote.control import Acquire, Busy, Failed, Leased, NotDue, Release, Taken
from governor.episodes.remote.environment_host import EnvironmentHost
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HUNG_PER_PLACE: Final = 4
CLOSE_SECONDS: Final = 2.0
"""How long an environment's own `close` may take."""

log = logs.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLease:
    holder: Acquire
    host: EnvironmentHost
    answer: Leased


class EnvironmentPool:
    """To be used in one event loop. `on_lost` is called once, with one line, when the pool cannot go on."""

    def __init__(
        self,
        *,
        entry: str,
        params: dict[str, Any],
        size: int,
        name: str,
        folder: Path,
        on_lost: Callable[[str], None],
        vector: int = 1,
    ) -> None:
        self.size = size
        self._entry = entry
        self._params = params
        self._name = name
        self._folder = folder
        self._on_lost = on_lost
        self._vector = vector
        self._serial = count()
        self._free: list[EnvironmentHost] = []
        self._leases: dict[str, EnvironmentLease] = {}
        self._hung: list[tuple[EnvironmentHost, str]] = []
        self._fillers: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()

    async def start(self) -> None:
        """Starts all environments side by side. Raises ConductorError with one line."""
        self._free = await asyncio.gather(*(self._new_host() for _ in range(self.size)))

    async def acquire(self, wanted: Acquire) -> Leased | Busy | Failed:
        async with self._changed:
            for key, lease in list(self._leases.items()):
                if lease.holder == wanted:
                    return lease.answer
                if _succeeds(wanted, lease.holder):
                    self._give_back(key)
            for dead in [host for host in self._free if host.over]:
                self._free.remove(dead)
                self._fill(dead)
            while not self._free:
                if not self._fillers:
                    return Busy(pool=self.size)
                await self._changed.wait()
            return self._lease(self._free.pop(0), wanted)

    async def release(self, wanted: Release) -> Taken | NotDue:
        """A lease that is over is no error: the release was sent twice, or its worker has moved on."""
        async with self._changed:
            lease = self._leases.get(wanted.lease)
            if lease is None:
                return Taken()
            if not wanted.hung and not wanted.renew:
                self._give_back(wanted.lease)
                self._changed.notify_all()
                return Taken()
            slot = lease.host.at_work
            if wanted.due and slot not in wanted.due:
                return NotDue()
            lease.host.lease = None
            del self._leases[wanted.lease]
            if wanted.hung:
                self._quarantine(lease.host, wanted.hung)
            else:
                self._fill(lease.host)
        return Taken(slot=slot)

    async def close(self) -> None:
        for filler in self._fillers:
            filler.cancel()
        hosts = [*self._free, *(lease.host for lease in self._leases.values())]
        await asyncio.gather(*(host.close(seconds=CLOSE_SECONDS) for host in hosts))

    @property
    def hanging(self) -> list[str]:
        """Why each thread was given up that still has not come back."""
        self._hung = [(host, why) for host, why in self._hung if not host.ended.is_set()]
        return [why for _, why in self._hung]

    def _lease(self, host: EnvironmentHost, holder: Acquire) -> Leased:
        key = f"{self._name}.lease-{next(self._serial)}"  # what is told late is of no later life
        answer = Leased(
            lease=key,
            endpoint=host.endpoint,
            observation_space=host.observation_space,
            action_space=host.action_space,
        )
        host.lease = key.encode()
        self._leases[key] = EnvironmentLease(holder=holder, host=host, answer=answer)
        return answer

    def _give_back(self, key: str) -> None:
        host = self._leases.pop(key).host
        host.lease = None
        if host.at_work is None:
            self._free.append(host)
        else:
            self._quarantine(host, "it was still at a request when its lease came back")

    def _quarantine(self, host: EnvironmentHost, why: str) -> None:
        host.abandon()
        self._hung.append((host, why))
        hanging = self.hanging
        log.warning("environment.quarantined", environment=host.name, reason=why, hanging=len(hanging))
        if len(hanging) >= HUNG_PER_PLACE * self.size:
            self._on_lost(f"{len(hanging)} environments hang, the last one: {why}")
        else:
            self._fill(None)

    def _fill(self, worn: EnvironmentHost | None) -> None:
        task = asyncio.create_task(self._replace(worn), name=f"{self._name}.replace")
        self._fillers.add(task)
        task.add_done_callback(self._fillers.discard)

    async def _replace(self, worn: EnvironmentHost | None) -> None:
        if worn is not None:
            await worn.close(seconds=CLOSE_SECONDS)
        try:
            host = await self._new_host()
        except ConductorError as error:
            self._on_lost(f"no new environment for one that is gone: {error.reason}")
            return
        async with self._changed:
            self._free.append(host)
            self._changed.notify_all()

    async def _new_host(self) -> EnvironmentHost:
        serial = next(self._serial)
        host = EnvironmentHost(
            entry=self._entry,
            params=self._params,
            name=f"{self._name}.{serial}",
            path=self._folder / f"{self._name}.{serial}",
            vector=self._vector,
        )
        await host.start()
        return host


def _succeeds(wanted: Acquire, held: Acquire) -> bool:
    """Whether who asks now is the later self of who holds the lease."""
    if wanted.owner != held.owner:
        return False
    if wanted.incarnation != held.incarnation:
        return wanted.incarnation > held.incarnation
    return wanted.worker == held.worker and wanted.turn > held.turn
