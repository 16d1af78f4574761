"""The environments of one conductor, a process each, and their leases.

Rules:
1. A lease always ends: by release, by the next turn of the same worker, or by the next incarnation of its owner. An
   environment that still handles a request then counts as hung.
2. A process that hangs is killed and replaced; so is one that was leased when it died. One that dies idle is replaced at the
   next `acquire`. None of that concerns another process, or the conductor.
   One that is stopped (SIGSTOP) for `liveness` seconds is killed.
3. `acquire` waits only while a replacement is being built; if all environments are leased it answers `Busy` at once.
4. The conductor gives up where an environment cannot be built: user code has raised, or its process has died `MAX_BUILDS` times
   in a row while it was built.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.episodes.remote import control
from governor.episodes.remote.control import Accepted, Acquire, Busy, Failed, Leased, NotExpired, Release
from governor.episodes.remote.environments.messages import ALL_SLOTS
from governor.episodes.remote.environments.process import CLOSE_SECONDS, EnvironmentExited, EnvironmentProcess
from governor.errors import ConductorError, ForkserverDied, GovernorError
from governor.failures import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from governor.episodes.remote.environments.process import Starter

MAX_BUILDS: Final = 3
LIVENESS_SECONDS: Final = 10.0
LONGEST_INTERVAL: Final = 2.0
"""Seconds between two looks for stopped processes."""

log = logs.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLease:
    holder: Acquire
    process: EnvironmentProcess
    answer: Leased


class EnvironmentPool:
    """To be used in one event loop. `start_process` starts the process of an environment; `on_lost` is called with a reason, in one
    line, when the pool cannot continue. `plain` is the name that processes are called by; `liveness`: rule 2.
    """

    def __init__(
        self,
        start_process: Starter,
        *,
        size: int,
        name: str,
        plain: str,
        folder: Path,
        on_lost: Callable[[str], None],
        liveness: float = LIVENESS_SECONDS,
    ) -> None:
        self.size = size
        self._start_process = start_process
        self._name = name
        self._plain = plain
        self._folder = folder
        self._on_lost = on_lost
        self._liveness = liveness
        self._serial = count()
        self._idle: list[EnvironmentProcess] = []
        self._leases: dict[str, EnvironmentLease] = {}
        self._processes: set[EnvironmentProcess] = set()
        """All of which something may be left."""
        self._changes: set[asyncio.Task[None]] = set()
        """Each ends with one more idle environment."""
        self._changed = asyncio.Condition()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts all environments concurrently. Raises ConductorError with one line."""
        self._idle = await asyncio.gather(*(self._built() for _ in range(self.size)))
        self._watch = asyncio.create_task(self._kill_stopped(), name=f"{self._name}.watch")

    async def acquire(self, request: Acquire) -> Leased | Busy | Failed:
        async with self._changed:
            for key, lease in list(self._leases.items()):
                if lease.holder == request:
                    return lease.answer
                if control.supersedes(request, lease.holder):
                    self._reclaim(key)
            while (
                refused := control.refusal(request, [lease.holder for lease in self._leases.values()])
            ) is None:
                if self._idle:
                    process = self._idle.pop(0)
                    if (leased := await self._lease(process, request)) is not None:
                        return leased
                    self._replace(process)
                elif not self._changes:
                    return Busy(pool=self.size)
                else:
                    await self._changed.wait()
            return refused

    async def release(self, request: Release) -> Accepted | NotExpired:
        """Releasing an ended lease is no error: the release was sent twice, or its worker has acquired another one."""
        async with self._changed:
            lease = self._leases.get(request.lease)
            if lease is None:
                return Accepted()
            process = lease.process
            if request.lost:
                del self._leases[request.lease]
                why = await process.wait_ended()
                self._replace(process)
                return Accepted(place=str(why), stack=why.traceback)
            if not request.hung:
                self._reclaim(request.lease, renew=request.renew)
                return Accepted()
            seen = await process.look()
            if seen is not None and request.due and seen.slot not in (*request.due, ALL_SLOTS):
                return NotExpired()
            del self._leases[request.lease]
            self._replace(process, why=request.hung)
        if seen is None:
            return Accepted()
        return Accepted(slot=seen.slot, place=seen.place, stack=seen.stack)

    async def close(self) -> None:
        self._leases.clear()  # who ends from now on is not replaced
        if self._watch is not None:
            self._watch.cancel()
        for change in self._changes:
            change.cancel()
        closing = [each.close(seconds=CLOSE_SECONDS) for each in self._processes]
        await asyncio.gather(*self._changes, *closing, return_exceptions=True)

    async def _lease(self, process: EnvironmentProcess, holder: Acquire) -> Leased | None:
        """None if it does not answer."""
        key = f"{self._name}.lease-{next(self._serial)}"  # unique, so a late message never matches a later lease
        if await process.lend(key) is None:
            return None
        built = process.built
        answer = Leased(
            lease=key,
            endpoint=process.endpoint,
            observation_space=built.observation_space,
            action_space=built.action_space,
            players=built.players,
            turns=built.turns,
        )
        self._leases[key] = EnvironmentLease(holder=holder, process=process, answer=answer)
        return answer

    def _reclaim(self, key: str, *, renew: bool = False) -> None:
        self._begin(self._take_back(self._leases.pop(key).process, renew=renew))

    async def _kill_stopped(self) -> None:
        """Its own pauses are not counted."""
        interval = min(LONGEST_INTERVAL, self._liveness / 5)
        stopped: Counter[EnvironmentProcess] = Counter()
        while True:
            await asyncio.sleep(interval)
            stopped = Counter({each: stopped[each] + 1 for each in self._processes if each.is_stopped})
            for process, times in stopped.items():
                if times * interval >= self._liveness:
                    log.warning("environment.stopped", environment=process.name, pid=process.pid)
                    await process.kill(f"it was stopped for {self._liveness:g} s")

    async def _take_back(self, process: EnvironmentProcess, *, renew: bool) -> None:
        seen = await process.lend("")
        if seen is None or seen.slot is not None:
            self._replace(process, why="it was still at a request when its lease came back")
        elif renew:
            await self._renew(process)
        else:
            await self._put_back(process)

    async def _renew(self, process: EnvironmentProcess) -> None:
        try:
            if await process.renew():
                return await self._put_back(process)
        except EnvironmentExited:
            pass
        except ConductorError as error:
            return self._give_up(error)
        return self._replace(process, why=f"its `close` took longer than {CLOSE_SECONDS:g} s")

    def _ended(self, process: EnvironmentProcess) -> None:
        if any(lease.process is process for lease in self._leases.values()):
            self._replace(process)

    def _replace(self, process: EnvironmentProcess, *, why: str = "") -> None:
        """Once for each process. `why` it is killed, if it is alive."""
        if process.is_replaced:
            return
        process.is_replaced = True
        if why and not process.ended.is_set():
            log.warning("environment.killed", environment=process.name, pid=process.pid, reason=why)
        self._begin(self._fill_place_of(process))

    async def _fill_place_of(self, process: EnvironmentProcess) -> None:
        await process.close()
        self._processes.discard(process)
        try:
            built = await self._built()
        except GovernorError as error:
            self._give_up(error)
        else:
            await self._put_back(built)

    def _give_up(self, error: GovernorError) -> None:
        self._on_lost(reason_of(error).within("no new environment for one that is gone"))

    async def _put_back(self, process: EnvironmentProcess) -> None:
        async with self._changed:
            self._idle.append(process)
            self._changed.notify_all()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"{self._name}.change")
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    async def _built(self) -> EnvironmentProcess:
        """A new environment. Raises ConductorError, ProcessError."""
        for build in count(1):
            serial = next(self._serial)
            path = self._folder / f"{self._name}.{serial}"
            name = f"{self._plain}.{serial}"
            process = EnvironmentProcess(name, path, start=self._start_process, on_ended=self._ended)
            self._processes.add(process)
            try:
                await process.start()
            except GovernorError as error:
                self._processes.discard(process)
                if build == MAX_BUILDS or not isinstance(error, EnvironmentExited | ForkserverDied):
                    raise
            else:
                return process
        raise AssertionError
