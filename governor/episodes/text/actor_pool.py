"""Who plays where: tasks that wait for an environment, and places with an environment each, started before it is asked for.

Rules:
1. Who holds what changes between two awaits and never across one: a cancellation finds a lease taken or not taken, never
   half of it, and `done` has given back before it can be interrupted.
2. A start is bounded in time, attempts and number side by side. One that does not end when cancelled is left alone, and
   what it makes later is closed.
3. An environment that broke is never leased again. Its place gets a new one; a place that gets none is lost, with its
   reason, and counts no more.
4. `acquire` waits only while something can come: for a place that is being filled, or for a holder.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, Final, NamedTuple, TypeAlias

from governor import logs
from governor.episodes.entries import one_line
from governor.episodes.text.environments.process import TextProcess
from governor.episodes.text.episode import reason_of
from governor.episodes.text.headers import checked
from governor.errors import ConductorError, TryAgain, UsageError

CLOSE_SECONDS: Final = 10.0
"""How long the `aclose` of an environment may take."""
KEPT_REASONS: Final = 100

log = logs.get_logger()


@dataclass(slots=True, frozen=True)
class ActorHandle:
    """One task and the environment that it is to be played in; a lease, if it comes from a pool.

    `transport` is "http" (at `base_url`, with `headers`) or "inproc" (`local_env`, a `TextEnvironment`). In the phase of a run, `episode` is
    the number of the episode and `seed` its seed: an environment that has `reset` gets it.
    """

    env_name: str
    env_id: str
    group_id: str
    transport: str = "http"
    base_url: str | None = None
    local_env: Any = None
    episode: int | None = None
    seed: int | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)


class EpisodeTask(NamedTuple):
    """What is to be played once. Tasks of one group are repetitions that belong together."""

    env_name: str
    env_id: str
    group_id: str = ""


@dataclass(slots=True, frozen=True)
class EnvironmentEndpoint:
    """Where an environment answers: the fields of an ActorHandle without its task. `reusable`: for the next task too."""

    transport: str
    base_url: str | None = None
    local_env: Any = None
    reusable: bool = True
    headers: Mapping[str, str] | None = field(default=None, repr=False)


MakeSite: TypeAlias = Callable[[], Awaitable[EnvironmentEndpoint]]


def http_sites(*base_urls: str, headers: Mapping[str, str] | None = None) -> MakeSite:
    """Environments on servers that are up already; places take the servers in turn. Each request carries `headers`, whose
    values are never shown. Raises UsageError for one that no request can carry.
    """
    sent = checked(headers or {})
    urls = cycle(base_urls)

    async def make() -> EnvironmentEndpoint:
        return EnvironmentEndpoint("http", next(urls), headers=sent)

    return make


def process_sites(
    made: Any,
    params: Mapping[str, Any] | None = None,
    *,
    reuse: bool | None = False,
    start_timeout: float = 60.0,
) -> MakeSite:
    """Environments in Python, each in a process of its own (`TextProcess`); with `reuse` for several tasks, one after the
    other; None: if it has `reset`. An environment is not told when an episode was broken off: one to be reused must not
    mind.
    """

    async def make() -> EnvironmentEndpoint:
        process = TextProcess(made, params)
        try:
            await process.start(timeout=start_timeout)
        except BaseException:
            await process.aclose()
            raise
        return EnvironmentEndpoint("inproc", None, process, process.has_reset if reuse is None else reuse)

    return make


class NoEnvironments(ConductorError):
    """Tasks are left, and no environment to play them in, nor one that could still come."""

    code = "no_environments"


class PoolBusy(TryAgain):
    """No environment came back within `acquire_timeout`."""

    code = "pool_busy"


class Quarantined(NamedTuple):
    """An environment that was taken out of use, or could not be started (`lost`: its place is gone)."""

    place: int
    reason: str
    lost: bool


class _Place(NamedTuple):
    number: int
    site: EnvironmentEndpoint


@dataclass(slots=True)
class _Lease:
    handle: ActorHandle
    place: _Place
    broken: str = ""


class ActorPool:
    """To be used in one event loop; tasks are taken from the iterable as they are needed, in their order.

    `quarantined` has the latest environments that were given up, `places` counts those in use or to come.
    """

    def __init__(
        self,
        tasks: Iterable[tuple[str, ...]],
        make_site: MakeSite,
        *,
        pool_size: int = 8,
        start_timeout: float = 60.0,
        start_attempts: int = 3,
        start_backoff: float = 0.5,
        start_at_once: int = 8,
        acquire_timeout: float = 600.0,
    ) -> None:
        """`make_site` starts one environment. All times are in seconds.

        A place gets `start_attempts` within `start_timeout`, the wait for its turn among `start_at_once` included, with
        `start_backoff` x 2^i between them.
        """
        if pool_size < 1 or start_attempts < 1 or start_at_once < 1:
            raise UsageError("pool_size, start_attempts and start_at_once must be at least 1")
        self.pool_size = pool_size
        self.quarantined: deque[Quarantined] = deque(maxlen=KEPT_REASONS)
        self._tasks = iter(tasks)
        self._ahead: deque[tuple[str, ...]] = deque()
        self._make_site = make_site
        self._start_timeout = start_timeout
        self._start_attempts = start_attempts
        self._start_backoff = start_backoff
        self._starting = asyncio.Semaphore(start_at_once)
        self._acquire_timeout = acquire_timeout
        self._free: deque[_Place] = deque()
        self._leases: dict[int, _Lease] = {}
        self._fillers: set[asyncio.Task[None]] = set()
        self._closers: set[asyncio.Task[None]] = set()
        self._left_alone: set[asyncio.Future[EnvironmentEndpoint]] = set()
        self._changed = asyncio.Event()
        self._started = False
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"<ActorPool free={len(self._free)} leased={len(self._leases)} starting={len(self._fillers)} "
            f"closed={self._closed}>"
        )

    @property
    def places(self) -> int:
        return len(self._free) + len(self._leases) + len(self._fillers)

    async def start(self) -> None:
        """Returns when each place has its environment or is lost; no more are started than there are tasks.

        Raises NoEnvironments when all are lost. A second call waits for what is starting, and starts nothing.
        """
        self._refuse_closed()
        if not self._started:
            self._started = True
            self._ahead.extend(islice(self._tasks, self.pool_size))
            for number in range(len(self._ahead)):
                self._fill(number)
        while self._fillers:
            await self._changed.wait()
        self._refuse_closed()
        if self._task_left():
            self._refuse_hopeless()

    async def acquire(self) -> ActorHandle | None:
        """A lease on the next task, or None when no task is left.

        Raises NoEnvironments when none can come any more, PoolBusy when none came within `acquire_timeout`, and
        UsageError before `start` and after `aclose`.
        """
        if not self._started:
            raise UsageError("the pool was not started: await start() first")
        until = asyncio.get_running_loop().time() + self._acquire_timeout
        while True:
            self._refuse_closed()
            if not self._task_left():
                return None
            if self._free:
                return self._lease()
            self._refuse_hopeless()
            try:
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
            except TimeoutError:
                raise PoolBusy(
                    f"no environment came back within {self._acquire_timeout:g} s: {len(self._leases)} are leased, "
                    f"{len(self._fillers)} start"
                ) from None

    def quarantine(self, actor: ActorHandle, reason: str) -> None:
        """What is leased broke: it is closed when it is `done`, and its place filled anew."""
        lease = self._leases.get(id(actor))
        if lease is not None:
            lease.broken = reason

    async def done(self, actor: ActorHandle) -> None:
        """Gives a lease back. A handle that is not leased (any more) is none of the pool's business."""
        lease = self._leases.pop(id(actor), None)
        if lease is None or self._closed:
            return
        place = lease.place
        if lease.broken:
            self.quarantined.append(Quarantined(place.number, lease.broken, lost=False))
            log.warning("environment.quarantined", place=place.number, reason=lease.broken)
        if place.site.reusable and not lease.broken:
            self._free.append(place)
        elif self._task_left():
            self._fill(place.number, worn=place.site)
        else:
            self._close_soon(place.site)
        self._wake()

    async def aclose(self) -> None:
        """Closes every environment, leased ones too, in `CLOSE_SECONDS` for each; who waits in `acquire` gets UsageError.

        May be called again.
        """
        self._closed = True
        sites = [place.site for place in self._free] + [lease.place.site for lease in self._leases.values()]
        self._free.clear()
        self._leases.clear()
        for site in sites:
            self._close_soon(site)
        self._wake()
        for filler in self._fillers:
            filler.cancel()
        if self._fillers:
            await asyncio.wait(self._fillers)
        if self._left_alone:
            await asyncio.wait(self._left_alone, timeout=CLOSE_SECONDS)
        while self._closers:
            await asyncio.wait(self._closers)

    def _lease(self) -> ActorHandle:
        task = EpisodeTask(*self._ahead.popleft())  # first: what is no task costs no place
        place = self._free.popleft()
        site = place.site
        handle = ActorHandle(*task, site.transport, site.base_url, site.local_env, headers=site.headers)
        self._leases[id(handle)] = _Lease(handle, place)
        return handle

    def _task_left(self) -> bool:
        if not self._ahead:
            self._ahead.extend(islice(self._tasks, 1))
        return bool(self._ahead)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise UsageError("the pool was closed")

    def _refuse_hopeless(self) -> None:
        if not self.places:
            latest = next((one for one in reversed(self.quarantined) if one.lost), None)
            why = f", the last one: {latest.reason}" if latest else ""
            raise NoEnvironments(f"tasks are left, and all environments are lost{why}")

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _fill(self, number: int, *, worn: EnvironmentEndpoint | None = None) -> None:
        filler = asyncio.create_task(self._fill_place(number, worn), name=f"actor_pool.fill.{number}")
        self._fillers.add(filler)
        filler.add_done_callback(self._filled)

    def _filled(self, filler: asyncio.Task[None]) -> None:
        self._fillers.discard(filler)
        self._wake()

    async def _fill_place(self, number: int, worn: EnvironmentEndpoint | None) -> None:
        if worn is not None:
            self._close_soon(worn)
        try:
            site = await self._start_site()
        except ConductorError as error:
            self.quarantined.append(Quarantined(number, error.reason, lost=True))
            log.error("environment.lost", place=number, reason=error.reason)  # noqa: TRY400  # one line says it
        else:
            self._free.append(_Place(number, site))

    async def _start_site(self) -> EnvironmentEndpoint:
        """Raises ConductorError with one line."""
        reason = ""
        try:
            async with asyncio.timeout(self._start_timeout):
                for attempt in range(self._start_attempts):
                    if attempt:
                        await asyncio.sleep(self._start_backoff * 2 ** (attempt - 1))
                    async with self._starting:
                        try:
                            return await self._make_or_leave()
                        except Exception as error:  # noqa: BLE001  # whatever the user's code raises
                            reason = reason_of(error)
        except TimeoutError:
            raise ConductorError(
                f"no start within {self._start_timeout:g} s{f': {reason}' if reason else ''}"
            ) from None
        raise ConductorError(f"no start in {self._start_attempts} attempts: {reason}")

    async def _make_or_leave(self) -> EnvironmentEndpoint:
        making = asyncio.ensure_future(self._make_site())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            if making.cancelled():
                raise ConductorError("the start cancelled itself") from None
            making.cancel()
            self._left_alone.add(making)
            making.add_done_callback(self._close_late)
            raise

    def _close_late(self, making: asyncio.Future[EnvironmentEndpoint]) -> None:
        self._left_alone.discard(making)
        if not making.cancelled() and making.exception() is None:
            self._close_soon(making.result())

    def _close_soon(self, site: EnvironmentEndpoint) -> None:
        if hasattr(site.local_env, "aclose"):
            closer = asyncio.create_task(_close(site.local_env), name="actor_pool.close")
            self._closers.add(closer)
            closer.add_done_callback(self._closers.discard)


async def _close(environment: Any) -> None:
    closing = asyncio.ensure_future(environment.aclose())
    done, _ = await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
    if not done:
        closing.cancel()
        log.warning("environment.close_hangs", seconds=CLOSE_SECONDS)
    elif not closing.cancelled() and (error := closing.exception()) is not None:
        log.warning("environment.close_failed", reason=one_line(error))
