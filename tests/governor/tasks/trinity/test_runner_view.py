"""`RunnerWrapper` against real Ray: one runner, of a scheduler or by itself."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
from dataclasses import replace

import pytest

from governor.tasks import RunnerWrapper, Task, TaskWrapper
from governor.tasks.scheduling import attempts
from tests.support.tasks.scheduling import BASE, turns, visitor, within

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


def slot(scheduler, slot_index):
    return scheduler.engine._core.slots.at_index(slot_index)


async def test_its_methods_are_those_that_users_know(scheduler):
    arguments = list(inspect.signature(RunnerWrapper.run_with_retry).parameters)[1:]
    assert arguments == ["task", "repeat_times", "run_id_base", "timeout", "collect_partial_runs"]
    arguments = list(inspect.signature(RunnerWrapper).parameters)
    assert arguments == ["runner_id", "rollout_model", "auxiliary_models", "config", "scheduler"]
    assert {number: each.runner_id for number, each in scheduler.runners.items()} == {0: 0, 1: 1}
    for unknown in (-1, 2):
        with pytest.raises(KeyError):
            RunnerWrapper(unknown, scheduler=scheduler)


async def test_runs_count_from_their_base_and_go_to_this_runner(scheduler, gate):
    for number in (0, 1, 0):
        wrapper = scheduler.runners[number]
        work = asyncio.create_task(wrapper.run_with_retry(visitor(gate, id="t"), 2, 4, 9.0))
        for run in (4, 5):
            visit = await gate.visit()
            assert (visit.task, visit.run) == ("t", run)
            await wrapper.update_state()
            assert wrapper.state["workflow_id"] == f"runner-{number}/t/{run}"
            visit.tell("go")
        status, payload, runner_id, seconds = await within(5, work)
        assert (status.ok, status.completed_runs, status.total_runs) == (True, 2, 2)
        assert [metrics.get("run") for metrics in status.metrics] == [4, 5, None]
        assert status.metrics[-1] == {"time/task_execution": seconds}
        assert (payload, runner_id) == (b"t/4t/5", number)
        assert 0 < seconds < 10


@pytest.mark.parametrize(("times", "ok"), [(1, True), (9, False)])
@pytest.mark.parametrize("collect", [True, False])
async def test_only_missing_runs_are_tried_again(scheduler, tmp_path, times, ok, collect):
    task = Task("batch_deeds:fail_first", {"folder": str(tmp_path), "times": times}, id="t")
    status, payload, _, _ = await within(
        20, scheduler.runners[0].run_with_retry(task, 2, 0, 9.0, collect_partial_runs=collect)
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-1", "1-1", "1-2"]
    assert (status.ok, status.completed_runs) == (ok, 2 if ok else 1)
    assert payload == (b"01" if ok else b"0" if collect else b""), "in the order of the runs"


@pytest.mark.parametrize(("repeat_times", "base"), [(0, 0), (-1, 0), (1, -1)])
async def test_runs_that_make_no_sense_are_refused(scheduler, repeat_times, base):
    with pytest.raises(ValueError, match="repeat_times must be 1 or more, and run_id_base 0 or more"):
        await scheduler.runners[0].run_with_retry(Task("deeds:nothing"), repeat_times, base, 9.0)


async def test_timeout_bounds_each_attempt(scheduler, gate):
    task = visitor(gate, id="t", retries=1)
    work = asyncio.create_task(scheduler.runners[0].run_with_retry(task, 1, 0, 0.2))
    first, second = await gate.visit(), await gate.visit()
    await within(5, first.gone())
    assert second.attempt == 2
    status, _, _, _ = await within(10, work)
    assert "timed_out" in status.message


async def test_what_its_caller_gives_up_is_cancelled(scheduler, gate):
    work = asyncio.create_task(scheduler.runners[0].run_with_retry(visitor(gate), 1, 0, 600.0))
    visit = await gate.visit()
    work.cancel()
    await within(5, visit.gone())
    with pytest.raises(asyncio.CancelledError):
        await work


async def test_prepare_replaces_a_runner_that_has_died(scheduler):
    wrapper = scheduler.runners[0]
    await within(20, wrapper.prepare())
    old = slot(scheduler, 0).runner
    os.kill(scheduler.engine._runners.pid(old), signal.SIGKILL)
    while slot(scheduler, 0) is not None and slot(scheduler, 0).runner == old:
        await scheduler.engine._wait_for_change()
    await within(20, wrapper.prepare())
    assert slot(scheduler, 0).runner != old


@pytest.mark.parametrize("with_a_spare", [False, True])
async def test_a_restarted_runner_is_ready_before_the_old_one_is_killed(
    scheduler, gate, with_a_spare, monkeypatch
):
    for number in range(2):
        await within(20, scheduler.runners[number].prepare())
    if with_a_spare:  # one is warmed for a task that may have to be killed soon: here, as soon as it begins
        monkeypatch.setattr(attempts, "SPARE_LEAD", 60.0)
        scheduler.schedule([visitor(gate, timeout=60.0)], 1)
        visit = await gate.visit()
        async with asyncio.timeout(30):
            while len(scheduler.engine._core.slots.all()) < 3 or any(
                each.state == "starting" for each in scheduler.engine._core.slots.all()
            ):
                await scheduler.engine._wait_for_change()
        visit.tell("go")
        assert (await within(5, scheduler.get_statuses(1)))[0].ok
    kills = []
    kill = scheduler.engine._runners.kill

    def noted(runner, reason, *, is_idle):
        states = {each.runner: each.state for each in scheduler.engine._core.slots.all()}
        kills.append((runner, [number for number, state in states.items() if state == "idle"]))
        kill(runner, reason, is_idle=is_idle)

    scheduler.engine._runners.kill = noted
    old = slot(scheduler, 0).runner
    try:
        await within(10, scheduler.runners[0].restart_runner())
    finally:
        del scheduler.engine._runners.kill
    ((killed, idle),) = kills
    assert killed == old
    assert len(idle) == 2, "the other one, and the new one"
    assert slot(scheduler, 0).runner != old


async def test_a_restart_counts_as_a_crash_of_what_was_at_work(scheduler, gate):
    scheduler.schedule([visitor(gate, retries=1)], 1)
    first = await gate.visit()
    (state,) = scheduler.running_tasks(1)
    await within(20, scheduler.runners[state.runner_id].restart_runner())
    await within(5, first.gone())
    second = await gate.visit()
    assert second.attempt == 2
    second.tell("go")
    await turns()
    assert (await within(5, scheduler.get_statuses(1)))[0].ok


async def test_a_runner_of_its_own(harness, gate):
    """It is started by its first call, has its models, and is gone when it is closed."""
    config = replace(BASE, runner_per_model=9)
    wrapper = RunnerWrapper(3, "url", ["judge"], config)
    assert (wrapper.runner_id, wrapper.rollout_model, wrapper.auxiliary_models) == (3, "url", ["judge"])
    task = Task("batch_deeds:tell_all", id="t")
    status, payload, runner_id, _ = await within(40, wrapper.run_with_retry(task, 1, 2, 9.0))
    assert (status.ok, status.task_id, runner_id) == (True, "t", 3)
    batch, _, run, _, _, model, *_ = json.loads(payload)
    assert (batch, run, model) == ("runner-3", 2, {"rollout": "url", "auxiliary": ["judge"]})
    await wrapper.update_state()
    assert wrapper.state["step"] == 2
    await within(20, wrapper.restart_runner())
    work = asyncio.create_task(wrapper.run_with_retry(visitor(gate), 1, 0, 600.0))
    visit = await gate.visit()
    await within(20, wrapper.close())
    await wrapper.close()
    await within(1, visit.gone())
    (ended,) = await within(1, asyncio.gather(work, return_exceptions=True))
    assert isinstance(ended, RuntimeError) or not ended[0].ok
    async with RunnerWrapper(0, config=config) as other:
        assert other.rollout_model is None
        assert (await within(20, other.run_with_retry(Task("deeds:nothing"), 1, 0, 9.0)))[0].ok


async def test_a_task_wrapper_is_taken_too_and_names_the_batch(scheduler):
    task = TaskWrapper(Task("batch_deeds:tell_all", id="t"), "7/math")
    status, payload, _, _ = await within(20, scheduler.runners[1].run_with_retry(task, 1, 0, 9.0))
    assert (status.ok, json.loads(payload)[:2]) == (True, ["7/math", "t"])
    assert (task.completed_runs, task.total_runs) == (0, 0)
