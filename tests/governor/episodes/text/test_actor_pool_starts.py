"""Places are warm before they are asked for: their starts are bounded in number, in time and in tries."""

import asyncio
import contextlib

import pytest

from governor.episodes.text import actor_pool
from governor.episodes.text.actor_pool import ActorPool, EnvironmentEndpoint, NoEnvironments
from governor.errors import UsageError
from tests.support.language_models.pool_world import TASKS, Environment, pools, soon


@pytest.fixture
async def stage():
    async with pools() as made:
        yield made


@pytest.fixture
def world(stage):
    return stage[0]


@pytest.fixture
def make_pool(stage):
    return stage[1]


async def test_places_are_warm_before_the_first_acquire(world, make_pool):
    pool = make_pool()
    await pool.start()
    assert world.started == 2
    first, second = await pool.acquire(), await pool.acquire()
    assert (first.env_id, second.env_id, first.group_id) == ("0", "1", "g")
    assert first.local_env is not second.local_env
    assert world.started == 2


async def test_no_more_environments_are_started_than_there_are_tasks(world, make_pool):
    pool = make_pool(TASKS[:1], pool_size=8)
    await pool.start()
    assert (world.started, pool.slots) == (1, 1)
    nothing = make_pool([])
    await nothing.start()
    assert await nothing.acquire() is None
    assert world.started == 1


async def test_starts_side_by_side_are_bounded(world, make_pool):
    pool = make_pool(pool_size=6, start_at_once=2)
    world.gate.clear()
    starting = asyncio.create_task(pool.start())
    await soon(world.arrived.wait())
    world.gate.set()
    await soon(starting)
    assert (world.started, world.most) == (6, 2)


async def test_a_start_that_never_ends_is_given_up_and_a_sound_one_plays(world, make_pool):
    stuck, calls = asyncio.Event(), 0

    async def make():
        nonlocal calls
        calls += 1
        if calls == 1:
            await stuck.wait()
        return await world.make()

    pool = ActorPool(TASKS, make, pool_size=2, start_timeout=0.2)
    await soon(pool.start())
    assert pool.slots == 1
    assert [(one.lost, one.reason) for one in pool.quarantined] == [(True, "no start within 0.2 s")]
    assert (await pool.acquire()).env_id == "0"
    await pool.aclose()


async def test_a_start_that_ignores_its_cancellation_is_left_and_what_it_makes_is_closed(world, monkeypatch):
    monkeypatch.setattr(actor_pool, "CLOSE_SECONDS", 0.1)
    stuck, closed = asyncio.Event(), asyncio.Event()

    class Late(Environment):
        async def aclose(self):
            await super().aclose()
            closed.set()

    async def make():
        while not stuck.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await stuck.wait()
        return EnvironmentEndpoint("inproc", None, Late(world))

    pool = ActorPool(TASKS, make, pool_size=1, start_timeout=0.1)
    with pytest.raises(NoEnvironments, match=r"no start within 0\.1 s"):
        await soon(pool.start())
    await soon(pool.aclose())
    stuck.set()
    await soon(closed.wait())
    assert world.open == set()


async def test_a_failed_start_is_tried_again(world, make_pool):
    world.fails = lambda number: number < 3
    pool = make_pool(pool_size=1)
    await pool.start()
    assert (world.started, pool.slots) == (3, 1)
    assert not pool.quarantined


async def test_when_nothing_starts_the_reason_is_told(world, make_pool):
    world.fails = lambda number: True
    pool = make_pool(start_attempts=2)
    with pytest.raises(
        NoEnvironments, match="all environments are lost, the last one: no start in 2 attempts: start 4 f"
    ):
        await soon(pool.start())
    with pytest.raises(NoEnvironments):
        await soon(pool.acquire())


async def test_aclose_ends_what_is_starting(world, make_pool):
    pool = make_pool()
    world.gate.clear()
    starting = asyncio.create_task(pool.start())
    await soon(world.arrived.wait())
    await soon(pool.aclose())
    with pytest.raises(UsageError):
        await starting


async def test_aclose_waits_for_the_end_of_a_start_that_cleans_up(world):
    cleaned = asyncio.Event()

    async def make():
        try:
            world.arrived.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            cleaned.set()

    pool = ActorPool(TASKS, make, pool_size=1)
    starting = asyncio.create_task(pool.start())
    await soon(world.arrived.wait())
    await soon(pool.aclose())
    assert cleaned.is_set()
    with pytest.raises(UsageError):
        await starting


async def test_before_start_nothing_can_be_acquired(make_pool):
    with pytest.raises(UsageError, match="not started"):
        await make_pool().acquire()
