"""Which episode of a phase is played next, and where: the pool of the Interactor that plays the episodes of a run.

Rules:
1. Episodes come from the simulation, in their order, and go back to it with their end; environments come from an ActorPool.
2. An environment behind a server is its id: an id is at play once at a time, and who needs it waits.
3. No more episodes than there are workers are unacknowledged: beyond that, the next one waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from governor.episodes.entries import in_daemon_thread, one_line
from governor.episodes.simulation import Paused
from governor.messages import EpisodeRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.episodes.simulation import Simulation
    from governor.episodes.text.actor_pool import ActorHandle, ActorPool
    from governor.episodes.text.interactor import TextEpisodeRecord


@dataclass(slots=True, frozen=True, kw_only=True)
class _Turn:
    handle: ActorHandle
    index: int
    worker: int
    lease: ActorHandle
    lock: asyncio.Lock


class Turns:
    """The pool of one phase. For one event loop, which need not be the simulation's."""

    def __init__(
        self, simulation: Simulation, places: ActorPool, *, env_name: str, id_of: Callable[[int], str]
    ) -> None:
        """`id_of` says in which environment an episode is played."""
        self.pool_size = places.pool_size
        self.sessions: dict[int, str] = {}
        """The session of each episode that was played here."""
        self._simulation = simulation
        self._places = places
        self._env_name = env_name
        self._id_of = id_of
        self._idle = deque(range(places.pool_size))
        self._put_back: deque[int] = deque()
        self._asking = asyncio.Lock()
        self._at_play: dict[int, _Turn] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._unacknowledged: set[asyncio.Future[Any]] = set()

    async def start(self) -> None:
        """Raises NoEnvironments."""
        await self._places.start()

    async def acquire(self) -> ActorHandle | None:
        """None when there is nothing more to play. Raises NoEnvironments, PoolBusy."""
        while len(self._unacknowledged) >= self.pool_size:
            await asyncio.wait(self._unacknowledged, return_when=asyncio.FIRST_COMPLETED)
        index = self._put_back.popleft() if self._put_back else await self._next_index()
        if index is None:
            return None
        env_id = self._id_of(index)
        lock = self._locks.setdefault(env_id, asyncio.Lock())
        try:
            await lock.acquire()
            try:
                lease = await self._places.acquire()
            except BaseException:
                lock.release()
                raise
        except BaseException:
            self._put_back.append(index)
            raise
        if lease is None:
            lock.release()
            return None
        handle = replace(
            lease,
            env_name=self._env_name,
            env_id=env_id,
            group_id=env_id,
            episode=index,
            seed=self._simulation.seed_of(index),
        )
        self._at_play[id(handle)] = _Turn(
            handle=handle, index=index, worker=self._idle.popleft(), lease=lease, lock=lock
        )
        return handle

    async def _next_index(self) -> int | None:
        async with self._asking:  # one thread waits for the end of a pause, whatever the number of workers
            try:
                return self._simulation.next_index(wait=False)
            except Paused:
                return await in_daemon_thread(self._simulation.next_index, name="text.paused")

    def ended(self, actor: ActorHandle, record: TextEpisodeRecord) -> None:
        """Keeps and reports the episode."""
        turn = self._at_play[id(actor)]
        episode = EpisodeRecord(
            index=turn.index,
            worker=turn.worker,
            seed=actor.seed or 0,
            outcome=record.outcome,
            value=record.total_reward,
            steps=record.steps,
            seconds=record.seconds,
            reason=record.reason,
        )
        self.sessions[turn.index] = record.session_id
        try:
            reported = asyncio.wrap_future(self._simulation.ended(episode))
        except OSError as error:
            self._simulation.break_off(f"cannot record episode {turn.index}: {one_line(error)}")
        else:
            self._unacknowledged.add(reported)
            reported.add_done_callback(self._acknowledged)

    async def settle(self) -> None:
        """Returns when all that has ended is acknowledged."""
        while self._unacknowledged:
            await asyncio.wait(self._unacknowledged)

    def _acknowledged(self, reported: asyncio.Future[Any]) -> None:
        self._unacknowledged.discard(reported)
        if not reported.cancelled():
            reported.exception()  # the simulation sees to it

    def quarantine(self, actor: ActorHandle, reason: str) -> None:
        self._places.quarantine(self._at_play[id(actor)].lease, reason)

    async def done(self, actor: ActorHandle) -> None:
        turn = self._at_play.pop(id(actor))
        turn.lock.release()
        self._idle.append(turn.worker)
        await self._places.done(turn.lease)
