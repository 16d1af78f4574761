"""The environments of one conductor and their leases.

Rules:
1. A lease always ends: by release, by the next turn of the same worker, or by the next incarnation of its owner. An
   environment that still handles a request then counts as hung.
2. A hung environment is abandoned with its thread and replaced. When `MAX_HUNG_PER_SLOT` threads for each environment of
   the pool still hang, the conductor gives up, and its successor starts with none.
3. An environment whose thread has ended is replaced at the next `acquire`.
4. `acquire` waits only while a replacement is being built; if all environments are leased it answers `Busy` at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.episodes.remote import control
from governor.episodes.remote.control import Accepted, Acquire, Busy, Failed, Leased, NotExpired, Release
from governor.errors import ConductorError
from governor.failures import Reason, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from governor.episodes.remote.environment_host import EnvironmentHost

MAX_HUNG_PER_SLOT: Final = 4
CLOSE_SECONDS: Final = 2.0
"""How long the user's `close` of an environment may take."""

log = logs.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLease:
    holder: Acquire
    host: EnvironmentHost
    answer: Leased


class EnvironmentPool:
    """To be used in one event loop. `new_host` makes an environment by its name and socket; `on_lost` is called with a reason, in one line, when the pool cannot continue."""

    def __init__(
        self,
        new_host: Callable[[str, Path], EnvironmentHost],
        *,
        size: int,
        name: str,
        folder: Path,
        on_lost: Callable[[str], None],
    ) -> None:
        self.size = size
        self._new_host = new_host
        self._name = name
        self._folder = folder
        self._on_lost = on_lost
        self._serial = count()
        self._idle: list[EnvironmentHost] = []
        self._leases: dict[str, EnvironmentLease] = {}
        self._hung: list[tuple[EnvironmentHost, str]] = []
        self._replacements: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()

    async def start(self) -> None:
        """Starts all environments concurrently. Raises ConductorError with one line."""
        self._idle = await asyncio.gather(*(self._start_host() for _ in range(self.size)))

    async def acquire(self, request: Acquire) -> Leased | Busy | Failed:
        async with self._changed:
            for key, lease in list(self._leases.items()):
                if lease.holder == request:
                    return lease.answer
                if control.supersedes(request, lease.holder):
                    self._reclaim(key)
            for dead in [host for host in self._idle if host.closed]:
                self._idle.remove(dead)
                self._start_replacement(dead)
            while (
                refused := control.refusal(request, [lease.holder for lease in self._leases.values()])
            ) is None:
                if self._idle:
                    return self._lease(self._idle.pop(0), request)
                if not self._replacements:
                    return Busy(pool=self.size)
                await self._changed.wait()
            return refused

    async def release(self, request: Release) -> Accepted | NotExpired:
        """Releasing an ended lease is no error: the release was sent twice, or its worker has acquired another one."""
        async with self._changed:
            lease = self._leases.get(request.lease)
            if lease is None:
                return Accepted()
            if not request.hung and not request.renew:
                self._reclaim(request.lease)
                self._changed.notify_all()
                return Accepted()
            slot = lease.host.current_slot
            if request.due and slot not in request.due:
                return NotExpired()
            at = lease.host.stack("") if request.hung else Reason("")
            lease.host.lease_ended()
            del self._leases[request.lease]
            if request.hung:
                self._quarantine(lease.host, request.hung)
            else:
                self._start_replacement(lease.host)
        return Accepted(slot=slot, place=str(at), stack=at.traceback)

    async def close(self) -> None:
        for replacement in self._replacements:
            replacement.cancel()
        hosts = [*self._idle, *(lease.host for lease in self._leases.values())]
        await asyncio.gather(*(host.close(seconds=CLOSE_SECONDS) for host in hosts))

    @property
    def hanging(self) -> list[str]:
        """For each abandoned thread that still runs, the reason why it was abandoned."""
        self._hung = [(host, why) for host, why in self._hung if not host.ended.is_set()]
        return [why for _, why in self._hung]

    def _lease(self, host: EnvironmentHost, holder: Acquire) -> Leased:
        key = f"{self._name}.lease-{next(self._serial)}"  # unique, so a late message never matches a later lease
        answer = Leased(
            lease=key,
            endpoint=host.endpoint,
            observation_space=host.observation_space,
            action_space=host.action_space,
            players=host.players,
            turns=host.turns,
        )
        host.lease = key.encode()
        self._leases[key] = EnvironmentLease(holder=holder, host=host, answer=answer)
        return answer

    def _reclaim(self, key: str) -> None:
        host = self._leases.pop(key).host
        host.lease_ended()
        if host.current_slot is None:
            self._idle.append(host)
        else:
            self._quarantine(host, "it was still at a request when its lease came back")

    def _quarantine(self, host: EnvironmentHost, why: str) -> None:
        host.abandon()
        self._hung.append((host, why))
        hanging = self.hanging
        log.warning("environment.quarantined", environment=host.name, reason=why, hanging=len(hanging))
        if len(hanging) >= MAX_HUNG_PER_SLOT * self.size:
            self._on_lost(f"{len(hanging)} environments hang, the last one: {why}")
        else:
            self._start_replacement(None)

    def _start_replacement(self, old: EnvironmentHost | None) -> None:
        task = asyncio.create_task(self._replace(old), name=f"{self._name}.replace")
        self._replacements.add(task)
        task.add_done_callback(self._replacements.discard)

    async def _replace(self, old: EnvironmentHost | None) -> None:
        if old is not None:
            await old.close(seconds=CLOSE_SECONDS)
        try:
            host = await self._start_host()
        except ConductorError as error:
            self._on_lost(reason_of(error).within("no new environment for one that is gone"))
            return
        async with self._changed:
            self._idle.append(host)
            self._changed.notify_all()

    async def _start_host(self) -> EnvironmentHost:
        name = f"{self._name}.{next(self._serial)}"
        host = self._new_host(name, self._folder / name)
        await host.start()
        return host
