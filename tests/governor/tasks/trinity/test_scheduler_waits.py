"""`Scheduler` against real Ray: what ends a wait, what is handed out then, and what is cancelled."""

from __future__ import annotations

import asyncio
import time

import pytest
import pytest_asyncio

from governor.tasks import (
    CompletedTaskResult,
    OverRollout,
    Scheduler,
)
from tests.support.tasks.scheduling import BASE, configured, turns, visitor, within

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pool(harness):
    async with Scheduler(BASE, rollout_model=["m0", "m1"], auxiliary_models=[["judge"]]) as scheduler:
        scheduler.config = BASE
        yield scheduler


# -- waiting --------------------------------------------------------------------------------------------------


async def test_an_unknown_batch_is_empty_at_once(scheduler):
    assert await within(1, scheduler.get_statuses("?", min_num=3)) == []
    assert await within(1, scheduler.get_payload_results("?")) == ([], [])
    assert await within(1, scheduler.drain_batch_payload_results("?")) == ([], [])
    scheduler.discard_completed_results("?")
    await within(1, scheduler.abort_batch("?"))
    assert not scheduler.has_step("?")
    await within(1, scheduler.wait_all())
    assert scheduler.explain("?") == []


async def test_min_num_and_then_the_rest_in_a_later_call(scheduler, gate):
    scheduler.schedule([visitor(gate, id=name) for name in "abc"], 1)
    visits = await gate.visits(3)
    waiting = asyncio.create_task(scheduler.get_payload_results(1, min_num=2, clear_timeout_tasks=False))
    visits["a", 0].tell("go")
    await visits["a", 0].gone()
    assert not waiting.done()
    visits["c", 0].tell("go")
    statuses, payloads = await within(5, waiting)
    assert sorted(status.task_id for status in statuses) == ["a", "c"]
    assert payloads == [f"{status.task_id}/0".encode() for status in statuses]
    visits["b", 0].tell("go")
    statuses, payloads = await within(5, scheduler.get_payload_results(1))
    assert ([status.task_id for status in statuses], payloads) == (["b"], [b"b/0"])


async def test_after_min_num_the_rest_has_wait_after_min_seconds(scheduler, gate):
    configured(scheduler, over_rollout=OverRollout(wait_after_min=0.3))
    scheduler.schedule([visitor(gate, id=name) for name in "abc"], 1)
    visits = await gate.visits(3)
    visits["a", 0].tell("go")
    began = time.monotonic()
    waiting = asyncio.create_task(scheduler.get_statuses(1, min_num=1))
    await visits["a", 0].gone()
    visits["b", 0].tell("go")
    assert sorted(status.task_id for status in await within(5, waiting)) == ["a", "b"]
    assert time.monotonic() - began > 0.29
    await within(5, visits["c", 0].gone())


@pytest.mark.parametrize("seconds", [0, 0.05])
async def test_the_time_is_up_and_what_is_left_is_cancelled(scheduler, gate, seconds):
    scheduler.schedule([visitor(gate, id=name) for name in "ab"], 1)
    visits = await gate.visits(2)
    visits["a", 0].tell("go")
    await scheduler.wait_for(1, min_num=1, clear_timeout_tasks=False)
    statuses = await within(5, scheduler.get_statuses(1, timeout=seconds))
    assert [status.task_id for status in statuses] == ["a"]
    await within(1, visits["b", 0].gone())
    assert not scheduler.has_step(1)


async def test_partial_tasks_are_handed_out_when_asked_for(scheduler, gate):
    for partial in (True, False):
        scheduler.schedule([visitor(gate, id="t", repeat_times=3)], 1)
        (await gate.visit()).tell("go")
        await gate.visit()
        statuses, payloads = await within(
            5, scheduler.get_payload_results(1, timeout=0.01, return_partial_tasks=partial)
        )
        found = [(status.completed_runs, status.total_runs, status.ok) for status in statuses]
        assert (found, payloads) == (([(1, 3, False)], [b"t/0"]) if partial else ([], []))


async def test_drain_takes_what_is_there_and_discard_drops_it(scheduler, gate):
    scheduler.schedule([visitor(gate, id=name) for name in "abc"], 1)
    visits = await gate.visits(3)
    visits["b", 0].tell("go")
    await visits["b", 0].gone()
    await scheduler.wait_for(1, min_num=1, clear_timeout_tasks=False)
    statuses, payloads = await within(1, scheduler.drain_batch_payload_results(1))
    assert ([status.task_id for status in statuses], payloads) == (["b"], [b"b/0"])
    assert await within(1, scheduler.drain_batch_payload_results(1)) == ([], [])
    visits["a", 0].tell("go")
    await scheduler.wait_for(1, min_num=1, clear_timeout_tasks=False)
    (result,) = await scheduler.peek_results(1)
    assert isinstance(result, CompletedTaskResult)
    assert (result.batch_id, result.task_id, result.status.ok) == (1, "a", True)
    assert result.experience_payloads == [b"a/0"]
    scheduler.discard_completed_results(1)
    visits["c", 0].tell("go")
    statuses = await within(5, scheduler.get_statuses(1))
    assert [status.task_id for status in statuses] == ["c"]


async def test_wait_all_waits_for_every_batch_and_hands_out_nothing(scheduler, gate):
    for batch_id in (1, 2):
        scheduler.schedule([visitor(gate, id=str(batch_id))], batch_id)
    visits = await gate.visits(2)
    waiting = asyncio.create_task(scheduler.wait_all())
    visits["1", 0].tell("go")
    await within(5, scheduler.wait_for(1))
    await turns()
    assert not waiting.done()
    visits["2", 0].tell("go")
    await within(5, waiting)
    assert len(await scheduler.get_statuses(1)) == len(await scheduler.get_statuses(2)) == 1


async def test_wait_all_times_out_only_without_progress(scheduler, gate):
    """Its time-out starts again with the end of any run of any batch."""
    scheduler.schedule([visitor(gate, id="stuck")], 1)
    scheduler.schedule([visitor(gate, id="busy", repeat_times=3)], 2)
    visits = await gate.visits(2)
    began = time.monotonic()
    waiting = asyncio.create_task(scheduler.wait_all(timeout=0.8, clear_timeout_tasks=False))
    asyncio.get_running_loop().call_later(0.5, visits["busy", 0].tell, "go")
    with pytest.raises(TimeoutError, match=r"0\.8 s; 2 tasks"):
        await within(5, waiting)
    assert 1.25 < time.monotonic() - began < 1.58, "0.5 and 0.8 s; not 0.8, and not twice 0.8"
    assert scheduler.has_step(1), "nothing was cancelled"
    with pytest.raises(TimeoutError):
        await within(5, scheduler.wait_all(timeout=0))
    await within(2, visits["stuck", 0].gone())
    assert not scheduler.has_step(1)


@pytest.mark.parametrize("restart", [True, False])
async def test_abort_replaces_runners_or_leaves_those_that_obey(scheduler, gate, restart):
    scheduler.schedule([visitor(gate, id=name) for name in "abcdef"], 1)
    visits = await gate.visits(4)
    waiting = asyncio.create_task(scheduler.get_statuses(1))
    await turns()
    before = {slot.runner for slot in scheduler.engine._core.slots.all()}
    await within(5, scheduler.abort_batch(1, restart_runners=restart))
    assert await within(1, waiting) == []
    for visit in visits.values():
        await within(1, visit.gone())
    for runner in range(scheduler.runner_num):
        await within(10, scheduler.runners[runner].prepare())
    left = {slot.runner for slot in scheduler.engine._core.slots.all() if slot.state == "idle"}
    assert (left & before == set()) if restart else (left <= before)
    assert gate.arrivals.empty()
