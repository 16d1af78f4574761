"""Leases are released, broken environments are replaced, and a wait ends when no environment can come."""

import asyncio
import contextlib

import pytest

from governor.episodes.text.actor_pool import ActorHandle, NoEnvironments, PoolBusy
from governor.errors import UsageError
from tests.support.language_models.pool_world import TASKS, pools, soon, waiting


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


def test_a_handle_has_the_fields_that_users_know():
    handle = ActorHandle("lake", "7", "g", "http", "http://host:1", None)
    assert (
        handle.env_name,
        handle.env_id,
        handle.group_id,
        handle.transport,
        handle.base_url,
        handle.local_env,
    ) == (
        "lake",
        "7",
        "g",
        "http",
        "http://host:1",
        None,
    )
    assert ActorHandle("lake", "7", "g").transport == "http"


async def test_every_task_is_given_out_once_then_none(make_pool):
    pool = make_pool()
    await pool.start()
    seen = []
    while (handle := await pool.acquire()) is not None:
        seen.append(handle.env_id)
        await pool.done(handle)
    assert seen == [task[1] for task in TASKS]
    assert await pool.acquire() is None


async def test_none_comes_at_once_when_the_last_task_is_still_leased(make_pool):
    pool = make_pool(TASKS[:1])
    await pool.start()
    await pool.acquire()
    assert await soon(pool.acquire()) is None


async def test_tasks_are_taken_as_they_are_needed(make_pool):
    taken = []
    pool = make_pool(taken.append(task) or task for task in TASKS)
    await pool.start()
    assert len(taken) == 2


async def test_a_released_lease_wakes_a_waiting_acquire(make_pool):
    pool = make_pool(pool_size=1)
    await pool.start()
    first = await pool.acquire()
    next_one = await waiting(pool)
    await pool.done(first)
    assert (await soon(next_one)).local_env is first.local_env


async def test_a_cancelled_wait_takes_no_lease(make_pool):
    pool = make_pool(pool_size=1)
    await pool.start()
    first = await pool.acquire()
    next_one = await waiting(pool)
    await pool.done(first)  # the waiter is woken, and cancelled before it runs
    next_one.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await next_one
    if not next_one.cancelled():
        await pool.done(next_one.result())
    assert await soon(pool.acquire()) is not None


async def test_done_gives_back_although_its_caller_is_cancelled(make_pool):
    pool = make_pool(pool_size=1)
    await pool.start()

    async def play():
        handle = await pool.acquire()
        asyncio.current_task().cancel()  # as soon as it awaits anything
        await pool.done(handle)

    await asyncio.wait({asyncio.create_task(play())})
    assert (await soon(pool.acquire())).env_id == "1"


async def test_done_twice_gives_back_once(make_pool):
    pool = make_pool(pool_size=1)
    await pool.start()
    first = await pool.acquire()
    await pool.done(first)
    second = await pool.acquire()
    await pool.done(first)
    third = await waiting(pool)
    await pool.done(second)
    assert (await soon(third)).env_id == "2"


async def test_a_broken_environment_is_quarantined_and_its_place_filled(world, make_pool):
    pool = make_pool(pool_size=1)
    await pool.start()
    first = await pool.acquire()
    pool.quarantine(first, "it hangs")
    await pool.done(first)
    second = await soon(pool.acquire())
    assert second.local_env.number == 2
    assert [(one.reason, one.lost) for one in pool.quarantined] == [("it hangs", False)]
    assert first.local_env not in world.open


async def test_without_reuse_every_task_gets_a_fresh_environment(world, make_pool):
    world.reusable = False
    pool = make_pool(pool_size=1)
    await pool.start()
    numbers = []
    while (handle := await soon(pool.acquire())) is not None:
        numbers.append(handle.local_env.number)
        await pool.done(handle)
    assert numbers == [1, 2, 3, 4, 5, 6]


async def test_a_refill_that_fails_counts_the_place_down_and_the_others_go_on(world, make_pool):
    pool = make_pool()
    await pool.start()
    first, second = await pool.acquire(), await pool.acquire()
    world.fails = lambda number: True
    pool.quarantine(first, "it hangs")
    await pool.done(first)
    third = await waiting(pool)
    await pool.done(second)
    assert (await soon(third)).local_env is second.local_env
    assert await soon(asyncio.shield(lost(pool)))
    assert pool.slots == 1


async def lost(pool):
    while not any(one.lost for one in pool.quarantined):
        await pool._changed.wait()
    return True


async def test_a_waiting_acquire_fails_when_the_last_start_fails(world, make_pool):
    pool = make_pool(pool_size=1)
    await pool.start()
    first = await pool.acquire()
    world.fails = lambda number: True
    next_one = await waiting(pool)
    pool.quarantine(first, "it hangs")
    await pool.done(first)
    with pytest.raises(NoEnvironments, match="start 4 failed"):
        await soon(next_one)


async def test_nothing_is_refilled_when_no_task_is_left(world, make_pool):
    pool = make_pool(TASKS[:1])
    await pool.start()
    handle = await pool.acquire()
    pool.quarantine(handle, "it hangs")
    await pool.done(handle)
    assert (world.started, pool.slots) == (1, 0)
    assert await pool.acquire() is None


async def test_a_wait_for_a_holder_that_never_gives_back_ends(make_pool):
    pool = make_pool(pool_size=1, acquire_timeout=0.1)
    await pool.start()
    await pool.acquire()
    with pytest.raises(PoolBusy, match=r"within 0\.1 s: 1 are leased"):
        await soon(pool.acquire())


async def test_aclose_closes_all_and_fails_a_waiting_acquire(world, make_pool):
    pool = make_pool(pool_size=1)
    await pool.start()
    handle = await pool.acquire()
    next_one = await waiting(pool)
    await soon(pool.aclose())
    with pytest.raises(UsageError, match="closed"):
        await next_one
    assert world.open == set()
    await pool.done(handle)
    await pool.aclose()
    with pytest.raises(UsageError):
        await pool.start()


async def test_what_is_no_task_costs_no_place(make_pool):
    pool = make_pool([("lake",), ("lake", "1", "g")], pool_size=1)
    await pool.start()
    with pytest.raises(TypeError):
        await pool.acquire()
    assert (await soon(pool.acquire())).env_id == "1"
