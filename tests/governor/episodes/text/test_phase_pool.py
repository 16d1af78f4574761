"""Assignments of episodes: what a failed wait has taken is returned, so that no other wait lasts for ever."""

import asyncio
import contextlib
import os

import pytest

from governor.episodes.simulation import Simulation
from governor.episodes.text.actor_pool import ActorHandle, ActorPool, PoolBusy, http_endpoints
from governor.episodes.text.phase_pool import PhasePool
from governor.messages.link import RecordingLink
from tests.support.in_process_commands import inside


@pytest.fixture
async def make_phase_pool(harness):
    """The phase_pool of a phase of three episodes, over a pool of two actors that soon loses patience."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(*ids):
            simulation = Simulation(
                command=harness.command(workers=2, **inside()),
                spec=harness.spec("simulation"),
                link=RecordingLink(harness.client),
            )
            stack.callback(os.close, simulation.stop_signal)
            phase_pool = PhasePool(
                simulation,
                http_endpoints("http://h"),
                episodes=9,
                env_name="walk",
                id_of=lambda index: ids[index % len(ids)],
                acquire_timeout=0.1,
            )
            stack.push_async_callback(phase_pool.aclose)
            await phase_pool.start()
            return phase_pool

        yield make


async def test_an_episode_for_which_no_place_came_is_the_next_ones(make_phase_pool):
    phase_pool = await make_phase_pool("a", "b", "c")
    held = [await ActorPool.acquire(phase_pool) for _ in range(2)]
    with pytest.raises(PoolBusy):
        await phase_pool.acquire()
    for lease in held:
        await phase_pool.done(lease)
    assert [(await phase_pool.acquire()).episode for _ in range(2)] == [0, 1]


async def test_an_id_without_an_environment_is_free_for_the_next_wait(make_phase_pool):
    phase_pool = await make_phase_pool("only")
    held = [await ActorPool.acquire(phase_pool) for _ in range(2)]
    both = [asyncio.create_task(phase_pool.acquire()) for _ in range(2)]
    async with asyncio.timeout(20):
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for lease in held:
            await phase_pool.done(lease)
        ended = await asyncio.gather(*both, return_exceptions=True)
    assert all(isinstance(end, PoolBusy | ActorHandle) for end in ended)


async def test_a_cancelled_wait_for_an_id_takes_nothing(make_phase_pool):
    phase_pool = await make_phase_pool("only")
    first = await phase_pool.acquire()
    waiting = asyncio.create_task(phase_pool.acquire())
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    await phase_pool.done(first)
    async with asyncio.timeout(20):
        assert (await phase_pool.acquire()).episode == 1
