"""Places are prewarmed within bounds, leases come back, and nobody waits for what cannot come."""

import asyncio
import contextlib

import pytest

from governor.episodes.text import actor_pool
from governor.episodes.text.actor_pool import ActorHandle, ActorPool, NoEnvironments, PoolBusy, Site
from governor.errors import ConductorError, UsageError

TASKS = [("lake", str(n), "g") for n in range(6)]


class Environment:
    def __init__(self, world):
        self.world = world
        self.number = world.started
        world.open.add(self)

    async def aclose(self):
        self.world.open.discard(self)


class World:
    """What starts environments; the test says how."""

    def __init__(self):
        self.started = self.together = self.most = 0
        self.open = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self.fails = lambda number: False
        self.reusable = True

    async def make(self):
        self.started += 1
        number = self.started
        self.together += 1
        self.most = max(self.most, self.together)
        self.arrived.set()
        try:
            await self.gate.wait()
        finally:
            self.together -= 1
        if self.fails(number):
            raise ConductorError(f"start {number} failed")
        return Site("inproc", None, Environment(self), self.reusable)


@pytest.fixture
def world():
    return World()


@pytest.fixture
async def make_pool(world):
    async with contextlib.AsyncExitStack() as stack:

        def make(tasks=TASKS, **more):
            pool = ActorPool(
                tasks, world.make, **{"pool_size": 2, "start_backoff": 0.0, "start_timeout": 20.0, **more}
            )
            stack.push_async_callback(pool.aclose)
            return pool

        yield make
    assert world.open == set(), "environments were left open"


async def waiting(pool):
    """A task in `acquire` that waits."""
    task = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def soon(awaitable):
    return await asyncio.wait_for(awaitable, 20)


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


async def test_places_are_warm_before_the_first_acquire(world, make_pool):
    pool = make_pool()
    await pool.start()
    assert world.started == 2
    first, second = await pool.acquire(), await pool.acquire()
    assert (first.env_id, second.env_id, first.group_id) == ("0", "1", "g")
    assert first.local_env is not second.local_env
    assert world.started == 2


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


async def test_no_more_environments_are_started_than_there_are_tasks(world, make_pool):
    pool = make_pool(TASKS[:1], pool_size=8)
    await pool.start()
    assert (world.started, pool.places) == (1, 1)
    nothing = make_pool([])
    await nothing.start()
    assert await nothing.acquire() is None
    assert world.started == 1


async def test_tasks_are_taken_as_they_are_needed(make_pool):
    taken = []
    pool = make_pool(taken.append(task) or task for task in TASKS)
    await pool.start()
    assert len(taken) == 2


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
    assert pool.places == 1
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
        return Site("inproc", None, Late(world))

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
    assert (world.started, pool.places) == (3, 1)
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


async def test_a_lease_that_comes_back_wakes_who_waits(make_pool):
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
        try:
            await asyncio.Event().wait()
        finally:
            await pool.done(handle)

    player = asyncio.create_task(play())
    await asyncio.sleep(0)
    player.cancel()
    player.cancel()
    await asyncio.wait({player})
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
    assert pool.places == 1


async def lost(pool):
    while not any(one.lost for one in pool.quarantined):
        await pool._changed.wait()
    return True


async def test_who_waits_is_told_when_the_last_refill_fails(world, make_pool):
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
    assert (world.started, pool.places) == (1, 0)
    assert await pool.acquire() is None


async def test_a_wait_for_a_holder_that_never_gives_back_ends(make_pool):
    pool = make_pool(pool_size=1, acquire_timeout=0.1)
    await pool.start()
    await pool.acquire()
    with pytest.raises(PoolBusy, match=r"within 0\.1 s: 1 are leased"):
        await soon(pool.acquire())


async def test_aclose_closes_all_and_sends_home_who_waits(world, make_pool):
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


async def test_what_is_no_task_costs_no_place(make_pool):
    pool = make_pool([("lake",), ("lake", "1", "g")], pool_size=1)
    await pool.start()
    with pytest.raises(TypeError):
        await pool.acquire()
    assert (await soon(pool.acquire())).env_id == "1"
