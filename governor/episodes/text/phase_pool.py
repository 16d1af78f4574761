"""The pool of the Interactor in the phase of a run: environments of an ActorPool, for the episodes of a simulation.

Rules:
1. Episodes come from the simulation, in its order, and their ends go back to it.
2. An environment behind a server is identified by its id: one episode at a time uses an id, others wait.
3. At most as many ended episodes as there are workers are unacknowledged: beyond that, the next one waits.
4. While an episode waits for its environment, others end. So what may keep it from beginning (a pause, an answer of a
   condition that is due, a RESET) is looked at again after each wait, and there is none between that and the lease.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

from governor.episodes.entries import in_daemon_thread
from governor.episodes.rules.evaluation import number_of
from governor.episodes.simulation import Paused
from governor.episodes.text.actor_pool import ActorPool
from governor.failures import one_line, traceback_of
from governor.messages import EpisodeRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.episodes.simulation import Simulation
    from governor.episodes.text.actor_pool import ActorHandle, MakeEndpoint
    from governor.episodes.text.episode import TextEpisodeRecord


class PhasePool(ActorPool):
    """The pool of one phase. For one event loop, which need not be the simulation's."""

    def __init__(
        self,
        simulation: Simulation,
        make_endpoint: MakeEndpoint,
        *,
        episodes: int,
        env_name: str,
        id_of: Callable[[int], str],
        acquire_timeout: float = 600.0,
    ) -> None:
        """`episodes` are left at most; `id_of` maps an episode to the id of its environment."""
        super().__init__(
            repeat((env_name, ""), episodes),
            make_endpoint,
            pool_size=simulation.command.workers,
            acquire_timeout=acquire_timeout,
        )
        self._simulation = simulation
        self._resets = simulation.resets
        self._id_of = id_of
        self._ids_in_use: set[str] = set()
        self._returned_indices: deque[int] = deque()
        self._index_lock, self._pause_lock = asyncio.Lock(), asyncio.Lock()
        self._unacknowledged: set[asyncio.Future[Any]] = set()

    async def acquire(self) -> ActorHandle | None:
        """None when no episode is left. Raises NoEnvironments, PoolBusy."""
        while len(self._unacknowledged) >= self.pool_size:
            await asyncio.wait(self._unacknowledged, return_when=asyncio.FIRST_COMPLETED)
        index = self._returned_indices.popleft() if self._returned_indices else await self._next_index()
        if index is None:
            return None
        try:
            return await self._acquire_for(index)
        except BaseException:
            self._returned_indices.append(index)
            raise

    async def _acquire_for(self, index: int) -> ActorHandle | None:
        env_id = self._id_of(index)
        while await self._may_begin(index):
            if self._resets != self._simulation.resets:
                self._resets = self._simulation.resets
                self._renew()
            if env_id in self._ids_in_use:
                await self._changed.wait()
            elif self._idle and self._task_left():
                self._ids_in_use.add(env_id)
                return self._lease(
                    env_id=env_id,
                    group_id=env_id,
                    episode=index,
                    seed=self._simulation.seed_of(index),
                    evaluation=number_of(index, self._simulation.command),
                )
            elif not await self._wait_for_idle():
                return None
        return None

    async def _next_index(self) -> int | None:
        async with self._index_lock:  # one thread waits for the end of a pause, for any number of workers
            try:
                return self._index_now()
            except Paused:
                return await in_daemon_thread(self._simulation.next_index, name="text.paused")

    async def _may_begin(self, index: int) -> bool:
        """False once the phase stops. True is as of now: it is never followed by a wait."""
        while True:
            try:
                return self._index_now(again=index) is not None
            except Paused:
                wait = partial(self._simulation.next_index, again=index)
                # Not the other lock, whose holder may wait for the end of this episode.
                async with self._pause_lock:
                    await in_daemon_thread(wait, name="text.paused")

    def _index_now(self, *, again: int | None = None) -> int | None:
        """Raises Paused while no episode may begin."""
        if self._simulation.awaits_conditions:
            raise Paused
        return self._simulation.next_index(wait=False, again=again)

    def ended(self, actor: ActorHandle, record: TextEpisodeRecord) -> None:
        """Records and reports the episode."""
        index = actor.episode or 0
        episode = EpisodeRecord(
            index=index,
            worker=self._leases[id(actor)].number,
            seed=actor.seed or 0,
            outcome=record.outcome,
            value=record.total_reward,
            steps=record.steps,
            seconds=record.seconds,
            reason=str(record.reason),
            traceback=traceback_of(record.reason),
            metrics=record.metrics,
        )
        try:
            reported = asyncio.wrap_future(self._simulation.ended(episode))
        except OSError as error:
            self._simulation.break_off(f"cannot record episode {index}: {one_line(error)}")
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

    async def done(self, actor: ActorHandle) -> None:
        self._ids_in_use.discard(actor.env_id)
        await super().done(actor)
