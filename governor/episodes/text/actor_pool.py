"""Leases of text environments: tasks wait for an environment, and each slot of the pool has one, started in advance.

Rules:
1. State changes between two awaits and never across one: a cancellation finds a lease either taken or not taken, and
   `done` has released it before it can be interrupted.
2. A start is bounded in time, in attempts and in how many run at once. A start that does not end when cancelled is
   abandoned, and an environment that it makes later is closed.
3. A broken environment is never leased again. Its slot gets a new one; a slot that gets none is lost, with its reason, and
   no longer counts.
4. `acquire` waits only while an environment can come: from a slot that is starting, or from a lease.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from governor import logs
from governor.episodes.text.environments.process import TextProcess
from governor.episodes.text.headers import checked
from governor.errors import ConductorError, TryAgain, UsageError
from governor.failures import one_line, reason_of
from transport.backoff import Backoff

if TYPE_CHECKING:
    from governor.episodes.context import Context

CLOSE_SECONDS: Final = 10.0
"""How long the `aclose` of an environment may take."""
MAX_QUARANTINED: Final = 100

log = logs.get_logger()


@dataclass(slots=True, frozen=True)
class ActorHandle:
    """One task and the environment in which to play it; a lease, if it comes from a pool.

    `transport` is "http" (at `base_url`, with `headers`) or "inproc" (`local_env`, a `TextEnvironment`). In the phase of a run,
    `episode` is the number of the episode and `seed` its seed, which `reset` of an environment gets, if it has `reset`;
    `evaluation` is that of the evaluation that it belongs to, from 1, 0 for none.
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
    evaluation: int = 0


class EpisodeTask(NamedTuple):
    """A task to be played once. Tasks of one group are repetitions that belong together."""

    env_name: str
    env_id: str
    group_id: str = ""


@dataclass(slots=True, frozen=True)
class EnvironmentEndpoint:
    """How to reach an environment: the fields of an ActorHandle without its task. `reusable`: also for the next task."""

    transport: str
    base_url: str | None = None
    local_env: Any = None
    reusable: bool = True
    headers: Mapping[str, str] | None = field(default=None, repr=False)


MakeEndpoint: TypeAlias = Callable[[], Awaitable[EnvironmentEndpoint]]


def http_endpoints(*base_urls: str, headers: Mapping[str, str] | None = None) -> MakeEndpoint:
    """Environments on running servers; slots take the servers in turn. Each request carries `headers`, whose values are never
    shown. Raises UsageError for a header that no request can carry.
    """
    sent = checked(headers or {})
    urls = cycle(base_urls)

    async def make() -> EnvironmentEndpoint:
        return EnvironmentEndpoint("http", next(urls), headers=sent)

    return make


def process_endpoints(
    made: Any,
    params: Mapping[str, Any] | None = None,
    *,
    reuse: bool | None = False,
    start_timeout: float = 60.0,
    context: Context | None = None,
) -> MakeEndpoint:
    """Environments in Python, each in a process of its own (`TextProcess`). With `reuse` one process plays several tasks, one
    after the other; None: if it has `reset`. An environment is not notified when an episode is interrupted: a reused one must
    tolerate that. `start_timeout` is in seconds. A constructor with a parameter `context` gets that.
    """

    async def make() -> EnvironmentEndpoint:
        process = await TextProcess.started(made, params, timeout=start_timeout, context=context)
        return EnvironmentEndpoint("inproc", None, process, process.has_reset if reuse is None else reuse)

    return make


class NoEnvironments(ConductorError):
    """Tasks are left, but all environments are lost."""

    code = "no_environments"


class PoolBusy(TryAgain):
    """No environment was released within `acquire_timeout`."""

    code = "pool_busy"


class Quarantined(NamedTuple):
    """An environment that was taken out of use, or could not be started (`lost`: its slot is gone)."""

    slot: int
    reason: str
    lost: bool


@dataclass(slots=True)
class _Slot:
    """One environment of the pool; `actor` while it is leased."""

    number: int
    endpoint: EnvironmentEndpoint
    actor: ActorHandle | None = None
    broken: str = ""
    outdated: bool = False


class ActorPool:
    """A pool of environments for one event loop; it takes tasks from the iterable when it needs them, in their order.

    `quarantined` has the latest broken environments, `slots` counts the environments that are leased, idle or starting. A task is
    (env_name, env_id) or (env_name, env_id, group_id).
    """

    def __init__(
        self,
        tasks: Iterable[tuple[str, ...]],
        make_endpoint: MakeEndpoint,
        *,
        pool_size: int = 8,
        start_timeout: float = 60.0,
        start_attempts: int = 3,
        start_backoff: float = 0.5,
        start_at_once: int = 8,
        acquire_timeout: float = 600.0,
    ) -> None:
        """`make_endpoint` starts one environment. All times are in seconds.

        A slot has `start_attempts` within `start_timeout`, including the wait for one of the `start_at_once` starts, with pauses
        of `start_backoff` x 2^i between them.
        """
        if pool_size < 1 or start_attempts < 1 or start_at_once < 1:
            raise UsageError("pool_size, start_attempts and start_at_once must be at least 1")
        self.pool_size = pool_size
        self.quarantined: deque[Quarantined] = deque(maxlen=MAX_QUARANTINED)
        self._tasks = iter(tasks)
        self._lookahead: deque[tuple[str, ...]] = deque()
        self._make_endpoint = make_endpoint
        self._start_timeout = start_timeout
        self._start_attempts = start_attempts
        self._start_backoff = Backoff(start_backoff)
        self._starting = asyncio.Semaphore(start_at_once)
        self._acquire_timeout = acquire_timeout
        self._idle: deque[_Slot] = deque()
        self._leases: dict[int, _Slot] = {}
        self._starts: dict[asyncio.Task[None], int] = {}
        """Each with the number of its slot."""
        self._closings: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._started = False
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"<ActorPool free={len(self._idle)} leased={len(self._leases)} starting={len(self._starts)} "
            f"closed={self._closed}>"
        )

    @property
    def slots(self) -> int:
        return len(self._idle) + len(self._leases) + len(self._starts)

    async def start(self) -> None:
        """Returns when each slot has its environment or is lost; it starts at most as many as there are tasks.

        Raises NoEnvironments if all are lost. A second call waits for pending starts, and starts nothing.
        """
        self._raise_if_closed()
        if not self._started:
            self._started = True
            self._lookahead.extend(islice(self._tasks, self.pool_size))
            for number in range(len(self._lookahead)):
                self._start_slot(number)
        while self._starts:
            await self._changed.wait()
        self._raise_if_closed()
        if self._task_left():
            self._raise_if_all_lost()

    async def acquire(self) -> ActorHandle | None:
        """A lease on the next task, or None when no task is left.

        Raises NoEnvironments if all environments are lost, PoolBusy if none was released within `acquire_timeout`, and
        UsageError before `start` and after `aclose`.
        """
        return self._lease() if await self._wait_for_idle() else None

    async def _wait_for_idle(self) -> bool:
        """Returns at once when an environment is idle; False when no task is left. Raises as `acquire`."""
        if not self._started:
            raise UsageError("the pool was not started: await start() first")
        until = asyncio.get_running_loop().time() + self._acquire_timeout
        while True:
            self._raise_if_closed()
            if not self._task_left():
                return False
            if self._idle:
                return True
            self._raise_if_all_lost()
            try:
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
            except TimeoutError:
                raise PoolBusy(
                    f"no environment came back within {self._acquire_timeout:g} s: {len(self._leases)} are leased, "
                    f"{len(self._starts)} start"
                ) from None

    def quarantine(self, actor: ActorHandle, reason: str) -> None:
        """Marks a leased environment as broken: `done` closes it and starts a new one in its slot."""
        slot = self._leases.get(id(actor))
        if slot is not None:
            slot.broken = reason

    def _renew(self) -> None:
        """Every environment is started anew before its next task, also one that is just starting."""
        for slot in self._leases.values():
            slot.outdated = True
        for start, number in [*self._starts.items()]:
            if not start.done() and not start.cancelling():
                start.cancel()
                self._start_slot(number)
        while self._idle:
            slot = self._idle.popleft()
            self._run_closing(_close(slot.endpoint.local_env))
            self._start_slot(slot.number)

    async def done(self, actor: ActorHandle) -> None:
        """Releases a lease. A handle that is not leased (any more) is ignored."""
        slot = self._leases.pop(id(actor), None)
        if slot is None or self._closed:
            return
        if slot.broken:
            self.quarantined.append(Quarantined(slot.number, slot.broken, lost=False))
            log.warning("environment.quarantined", slot=slot.number, reason=slot.broken)
        if slot.endpoint.reusable and not slot.broken and not slot.outdated:
            slot.actor = None
            self._idle.append(slot)
        else:
            self._run_closing(_close(slot.endpoint.local_env))
            if self._task_left():
                self._start_slot(slot.number)
        self._wake()

    async def aclose(self) -> None:
        """Closes every environment, leased ones too, within `CLOSE_SECONDS` each; a pending `acquire` raises UsageError.

        May be called again.
        """
        self._closed = True
        for slot in (*self._idle, *self._leases.values()):
            self._run_closing(_close(slot.endpoint.local_env))
        self._idle.clear()
        self._leases.clear()
        self._wake()
        for start in self._starts:
            start.cancel()
        if self._starts:
            await asyncio.wait(self._starts)
        if self._closings:
            await asyncio.wait(self._closings, timeout=2 * CLOSE_SECONDS)

    def _lease(self, **fields: Any) -> ActorHandle:
        """Needs an idle environment and a task that is left. `fields` of the handle are not those of the task."""
        task = EpisodeTask(*self._lookahead.popleft())  # first: an invalid task uses no slot
        slot = self._idle.popleft()
        endpoint = slot.endpoint
        slot.actor = handle = ActorHandle(
            **(task._asdict() | fields),
            transport=endpoint.transport,
            base_url=endpoint.base_url,
            local_env=endpoint.local_env,
            headers=endpoint.headers,
        )
        self._leases[id(handle)] = slot
        return handle

    def _task_left(self) -> bool:
        if not self._lookahead:
            self._lookahead.extend(islice(self._tasks, 1))
        return bool(self._lookahead)

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise UsageError("the pool was closed")

    def _raise_if_all_lost(self) -> None:
        if not self.slots:
            latest = next((one for one in reversed(self.quarantined) if one.lost), None)
            why = f", the last one: {latest.reason}" if latest else ""
            raise NoEnvironments(f"tasks are left, and all environments are lost{why}")

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _start_slot(self, number: int) -> None:
        start = asyncio.create_task(self._run_start(number), name=f"actor_pool.fill.{number}")
        self._starts[start] = number
        start.add_done_callback(self._start_ended)

    def _start_ended(self, start: asyncio.Task[None]) -> None:
        self._starts.pop(start, None)
        self._wake()

    async def _run_start(self, number: int) -> None:
        last = ""
        try:
            async with asyncio.timeout(self._start_timeout):
                for attempt in range(self._start_attempts):
                    if attempt:
                        await asyncio.sleep(self._start_backoff.delay(attempt - 1))
                    async with self._starting:
                        try:
                            self._idle.append(_Slot(number, await self._make_or_abandon()))
                        except Exception as error:  # noqa: BLE001  # whatever the user's code raises
                            last = f": {reason_of(error)}"
                        else:
                            return
            reason = f"no start in {self._start_attempts} attempts{last}"
        except TimeoutError:
            reason = f"no start within {self._start_timeout:g} s{last}"
        self.quarantined.append(Quarantined(number, reason, lost=True))
        log.error("environment.lost", slot=number, reason=reason)

    async def _make_or_abandon(self) -> EnvironmentEndpoint:
        making = asyncio.ensure_future(self._make_endpoint())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            if making.cancelled():
                raise ConductorError("the start cancelled itself") from None
            making.cancel()
            self._run_closing(_close_late(making))
            raise

    def _run_closing(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(closing, name="actor_pool.close")
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)


async def _close_late(making: asyncio.Future[EnvironmentEndpoint]) -> None:
    await asyncio.wait({making})
    if not making.cancelled() and making.exception() is None:
        await _close(making.result().local_env)


async def _close(environment: Any) -> None:
    if not hasattr(environment, "aclose"):
        return
    closing = asyncio.ensure_future(environment.aclose())
    done, _ = await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
    if not done:
        closing.cancel()
        log.warning("environment.close_hangs", seconds=CLOSE_SECONDS)
    elif not closing.cancelled() and (error := closing.exception()) is not None:
        log.warning("environment.close_failed", reason=one_line(error))
