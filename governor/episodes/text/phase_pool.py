"""The pool of the Interactor in the phase of a run: it assigns episodes to environments.

Rules:
1. Episodes come from the simulation, in its order, and their ends go back to it; environments come from an ActorPool.
2. An environment behind a server is identified by its id: one episode at a time uses an id, others wait.
3. At most as many ended episodes as there are workers are unacknowledged: beyond that, the next one waits.
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
    from governor.episodes.text.episode import TextEpisodeRecord


@dataclass(slots=True, frozen=True, kw_only=True)
class _Assignment:
    handle: ActorHandle
    index: int
    worker: int
    lease: ActorHandle
    lock: asyncio.Lock


class PhasePool:
    """The pool of one phase. For one event loop, which need not be the simulation's."""

    def __init__(
        self, simulation: Simulation, actors: ActorPool, *, env_name: str, id_of: Callable[[int], str]
    ) -> None:
        """`id_of` maps an episode to the id of its environment."""
        self.pool_size = actors.pool_size
        self.sessions: dict[int, str] = {}
        """The session id of each episode that was played here."""
        self._simulation = simulation
        self._actors = actors
        self._env_name = env_name
        self._id_of = id_of
        self._idle = deque(range(actors.pool_size))
        self._returned_indices: deque[int] = deque()
        self._index_lock = asyncio.Lock()
        self._assignments: dict[int, _Assignment] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._unacknowledged: set[asyncio.Future[Any]] = set()

    async def start(self) -> None:
        """Raises NoEnvironments."""
        await self._actors.start()

    async def acquire(self) -> ActorHandle | None:
        """None when no episode is left. Raises NoEnvironments, PoolBusy."""
        while len(self._unacknowledged) >= self.pool_size:
            await asyncio.wait(self._unacknowledged, return_when=asyncio.FIRST_COMPLETED)
        index = self._returned_indices.popleft() if self._returned_indices else await self._next_index()
        if index is None:
            return None
        env_id = self._id_of(index)
        lock = self._locks.setdefault(env_id, asyncio.Lock())
        try:
            await lock.acquire()
            try:
                lease = await self._actors.acquire()
            except BaseException:
                lock.release()
                raise
        except BaseException:
            self._returned_indices.append(index)
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
        self._assignments[id(handle)] = _Assignment(
            handle=handle, index=index, worker=self._idle.popleft(), lease=lease, lock=lock
        )
        return handle

    async def _next_index(self) -> int | None:
        async with self._index_lock:  # one thread waits for the end of a pause, for any number of workers
            try:
                return self._simulation.next_index(wait=False)
            except Paused:
                return await in_daemon_thread(self._simulation.next_index, name="text.paused")

    def ended(self, actor: ActorHandle, record: TextEpisodeRecord) -> None:
        """Records and reports the episode."""
        assignment = self._assignments[id(actor)]
        episode = EpisodeRecord(
            index=assignment.index,
            worker=assignment.worker,
            seed=actor.seed or 0,
            outcome=record.outcome,
            value=record.total_reward,
            steps=record.steps,
            seconds=record.seconds,
            reason=record.reason,
        )
        self.sessions[assignment.index] = record.session_id
        try:
            reported = asyncio.wrap_future(self._simulation.ended(episode))
        except OSError as error:
            self._simulation.break_off(f"cannot record episode {assignment.index}: {one_line(error)}")
        else:
            self._unacknowledged.add(reported)
            reported.add_done_callback(self._acknowledged)

    async def wait_acknowledged(self) -> None:
        """Waits until all ended episodes are acknowledged."""
        while self._unacknowledged:
            await asyncio.wait(self._unacknowledged)

    def _acknowledged(self, reported: asyncio.Future[Any]) -> None:
        self._unacknowledged.discard(reported)
        if not reported.cancelled():
            reported.exception()  # the simulation handles it

    def quarantine(self, actor: ActorHandle, reason: str) -> None:
        self._actors.quarantine(self._assignments[id(actor)].lease, reason)

    async def done(self, actor: ActorHandle) -> None:
        assignment = self._assignments.pop(id(actor))
        assignment.lock.release()
        self._idle.append(assignment.worker)
        await self._actors.done(assignment.lease)
