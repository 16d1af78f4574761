"""As `test_cases_of_scheduler_test`: over-rollout, time-outs, what runners do."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from governor.tasks import DynamicTimeout, OverRollout, Task
from governor.tasks.scheduling.dynamic_timeout import TimeoutEstimator
from tests.support.tasks.scheduling import BASE, collected, configured, turns, visitor, within

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

SCORE = "batch_deeds:score"


async def test_over_rollout_min_wait(scheduler, gate):
    configured(scheduler, over_rollout=OverRollout(ratio=0.5, wait_after_min=1.5))
    scheduler.schedule([Task(SCORE), Task(SCORE), visitor(gate), visitor(gate)], 0)
    visits = await gate.visits(2)
    await scheduler.wait_for(0, min_num=2, clear_timeout_tasks=False)
    waiting = asyncio.create_task(scheduler.get_payload_results(0, min_num=2))
    await turns()
    visits["2", 0].tell("go")
    statuses, payloads = await within(5, waiting)
    assert [status.task_id for status in statuses] == ["0", "1", "2"]
    assert len(payloads) == 3
    await within(1, visits["3", 0].gone())


async def test_over_rollout_return_partial_tasks(scheduler, gate):
    over = OverRollout(ratio=0.5, wait_after_min=0.0, return_partial_tasks=True)
    configured(scheduler, over_rollout=over, max_repeat_times_per_runner=2)
    scheduler.schedule([visitor(gate, id="full"), visitor(gate, id="part", repeat_times=3)], 0)
    visits = await gate.visits(2)
    visits["part", 0].tell("go")
    visits["part", 1] = await gate.visit()
    visits["part", 1].tell("fail")
    visits["part", 2] = await gate.visit()
    visits["full", 0].tell("go")
    statuses, payloads = await within(
        5, scheduler.get_payload_results(0, min_num=1, timeout=20, return_partial_tasks=True)
    )
    full, part = statuses
    assert (full.ok, full.metrics[0]["run"]) == (True, 0)
    assert (part.ok, part.completed_runs, part.total_runs) == (False, 1, 3)
    assert part.metrics[0]["run"] == 0, "the mean of what is completed, and of nothing else"
    assert part.message.startswith("1/3 runs completed successfully, 1 cancelled; first error: run 1 failed")
    assert payloads == [b"full/0", b"part/0"]
    await within(1, visits["part", 2].gone())
    assert await collected(scheduler, 0, seconds=1) == (0, 0)


@pytest.mark.parametrize("stubborn", [False, True])
async def test_over_rollout_async_cancelled_runner_accepts_next_batch(scheduler, gate, stubborn):
    """Also where the user's code cannot be cancelled: there, theirs is busy until it ends by itself
    (test_over_rollout_sync_cancel_does_not_imply_immediate_runner_reuse); ours is another process by then.
    """
    over = OverRollout(ratio=0.5, wait_after_min=0.0, return_partial_tasks=True)
    configured(scheduler, over_rollout=over)
    left = [visitor(gate, id=name, args={"stubborn": stubborn}) for name in "ab"]
    scheduler.schedule([Task(SCORE), *left], 0)
    visits = await gate.visits(2)
    assert await collected(scheduler, 0, seconds=10, min_num=1, timeout=10) == (1, 1)
    for visit in visits.values():
        await within(1, visit.gone())
    scheduler.schedule([Task(SCORE)] * 2, 1)
    assert await collected(scheduler, 1, seconds=10, min_num=2, timeout=10) == (2, 2)


async def test_timeout_cleanup_still_restarts_runner(scheduler, gate):
    configured(scheduler, over_rollout=OverRollout(wait_after_min=100.0))
    scheduler.schedule([visitor(gate)] * 2, 0)
    before = {visit.pid for visit in (await gate.visits(2)).values()}
    assert await collected(scheduler, 0, seconds=10, timeout=0.1) == (0, 0)
    scheduler.schedule([visitor(gate)] * 2, 1)
    visits = await gate.visits(2)
    assert not before & {visit.pid for visit in visits.values()}
    for visit in visits.values():
        visit.tell("go")
    assert await collected(scheduler, 1) == (2, 2)


async def test_unexpected_task_exception_restarts_runner(scheduler, gate):
    """A runner that dies is replaced, and what it did is tried again: it never eats the next task."""
    scheduler.schedule([visitor(gate, retries=1)], 0)
    first = await gate.visit()
    ((number, state),) = scheduler.busy_runners.items()
    assert (state.runner_id, state.task.task_id) == (number, "0")
    os.kill(first.pid, signal.SIGKILL)
    second = await gate.visit()
    assert (second.attempt, second.pid != first.pid) == (2, True)
    second.tell("go")
    assert await collected(scheduler, 0) == (1, 1)
    for runner in scheduler.runners.values():
        await within(20, runner.prepare())
    assert (scheduler.busy_runners, len(scheduler.idle_runners)) == ({}, scheduler.runner_num)


@pytest.fixture
def learning(scheduler, monkeypatch):
    """The scheduler with a dynamic time-out as new."""

    def set_up(**fields):
        estimator = TimeoutEstimator(DynamicTimeout(enable=True, **fields), BASE.max_timeout)
        monkeypatch.setattr(scheduler, "_timeout_estimator", estimator)
        monkeypatch.setattr(scheduler._batches, "totals", type(scheduler._batches.totals)())
        return scheduler

    return set_up


async def test_dynamic_timeout(learning, gate):
    scheduler = learning(warmup_min_steps=1, ratio=3.0)
    configured(scheduler, max_retry_times=0)
    short = {"seconds": 0.1}
    scheduler.schedule([Task("deeds:sleep", short, is_eval=True)] * 4, "0/eval")
    assert await collected(scheduler, "0/eval") == (4, 0)
    assert (scheduler.total_running_time, scheduler.total_completed_steps) == (0, 0)
    assert (scheduler.total_completed_tasks, scheduler.total_completed_sub_tasks) == (0, 0)
    scheduler.schedule([Task("deeds:sleep", short)] * 4, 0)
    assert await collected(scheduler, 0) == (4, 0)
    assert 0.4 <= scheduler.total_running_time < 4
    assert scheduler.dynamic_timeout() == pytest.approx(3 * scheduler.total_running_time / 4)
    scheduler.schedule([visitor(gate)] * 2, 1)
    statuses = await within(10, scheduler.get_statuses(1))
    assert [status.ok for status in statuses] == [False, False]
    assert all("timed_out" in status.message for status in statuses), "long before max_timeout"


async def test_dynamic_timeout_warmup_min_steps_uses_completed_steps(learning):
    scheduler = learning(warmup_min_steps=2, ratio=1.5)
    configured(scheduler, max_repeat_times_per_runner=2)
    for step in (1, 2):
        scheduler.schedule([Task(SCORE, repeat_times=4)] * 2, step)
        assert await collected(scheduler, step) == (2, 8)
        assert (scheduler.total_completed_steps, scheduler.total_completed_tasks) == (step, 2 * step)
        assert scheduler.total_completed_sub_tasks == 4 * step
        assert (scheduler.dynamic_timeout() == scheduler.default_timeout) == (step == 1)
    mean = scheduler.total_running_time / scheduler.total_completed_sub_tasks
    assert scheduler.dynamic_timeout() == pytest.approx(1.5 * mean)


async def test_timeout_cleanup_keeps_completed_payloads_local(scheduler, gate):
    scheduler.schedule([Task(SCORE), visitor(gate)], 0)
    await gate.visit()
    await scheduler.wait_for(0, min_num=1, clear_timeout_tasks=False)
    assert await collected(scheduler, 0, seconds=10, min_num=2, timeout=0.1) == (1, 1)


async def test_runner_state_collection(scheduler, gate):
    """States are there without a report interval, and a task that hangs hides none."""
    scheduler.schedule([visitor(gate, id=name) for name in "ab"], 0)
    visits = await gate.visits(2)
    states = scheduler.get_all_state()
    for state in states.values():
        assert {
            "workflow_id",
            "model_version",
            "begin_time",
            "terminate_time",
            "running_time",
        } <= state.keys()
    found = scheduler.get_key_state("workflow_id")
    assert sorted(found.values()) == ["0/a/0", "0/b/0"]
    for number, state in states.items():
        runner = scheduler.runners[number]
        await runner.update_state()
        assert runner.state["workflow_id"] == found[number] == state["workflow_id"]
        assert scheduler.get_runner_state(number)["begin_time"] == pytest.approx(
            state["begin_time"], abs=0.01
        )
    for visit in visits.values():
        visit.tell("go")
    assert await collected(scheduler, 0) == (2, 2)
    scheduler.schedule([Task("batch_deeds:tell_all", repeat_times=2)], 1)
    assert await collected(scheduler, 1) == (1, 2)
    assert 1 in scheduler.get_key_state("step").values(), "what the task has set"
