"""Whose turn it is: what a wait that ended badly took is given back, so that nobody waits for it for ever."""

import asyncio
import contextlib
import os

import pytest
from in_process_commands import inside

from governor.episodes.simulation import Simulation
from governor.episodes.text.actor_pool import ActorHandle, ActorPool, PoolBusy, http_sites
from governor.episodes.text.turns import Turns
from governor.messages.link import RecordingLink


@pytest.fixture
async def make_turns(house):
    """The turns of a phase of three episodes, over a pool of two places that soon loses patience."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(*ids):
            simulation = Simulation(
                command=house.command(**inside()),
                spec=house.spec("simulation"),
                link=RecordingLink(house.client),
            )
            stack.callback(os.close, simulation.stop_signal)
            places = ActorPool([("", "")] * 9, http_sites("http://h"), pool_size=2, acquire_timeout=0.1)
            stack.push_async_callback(places.aclose)
            turns = Turns(simulation, places, env_name="walk", id_of=lambda index: ids[index % len(ids)])
            await turns.start()
            return turns, places

        yield make


async def test_an_episode_for_which_no_place_came_is_the_next_ones(make_turns):
    turns, places = await make_turns("a", "b", "c")
    held = [await places.acquire(), await places.acquire()]
    with pytest.raises(PoolBusy):
        await turns.acquire()
    for lease in held:
        await places.done(lease)
    assert [(await turns.acquire()).episode for _ in range(2)] == [0, 1]


async def test_an_id_for_which_no_place_came_is_free_for_who_waits_for_it(make_turns):
    turns, places = await make_turns("only")
    held = [await places.acquire(), await places.acquire()]
    both = [asyncio.create_task(turns.acquire()) for _ in range(2)]
    async with asyncio.timeout(20):
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for lease in held:
            await places.done(lease)
        ended = await asyncio.gather(*both, return_exceptions=True)
    assert all(isinstance(end, PoolBusy | ActorHandle) for end in ended)


async def test_a_cancelled_wait_for_an_id_takes_nothing(make_turns):
    turns, _ = await make_turns("only")
    first = await turns.acquire()
    waiting = asyncio.create_task(turns.acquire())
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    await turns.done(first)
    async with asyncio.timeout(20):
        assert (await turns.acquire()).episode == 1
