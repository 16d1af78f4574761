"""The cases of Trinity-RFT's tests/explorer/scheduler_test.py, each under its name, in our terms and against real Ray.

Where ours is to do better, the case says so.
"""

from __future__ import annotations

import asyncio
import json
import pickle

import pytest

from governor.tasks import Scheduler, Task, TaskResult
from tests.support.tasks.scheduling import BASE, collected, configured, turns, visitor, within

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

SCORE = "batch_deeds:score"
FAIL = Task("deeds:fail", retries=0)


async def test_get_payload_results(scheduler, gate):
    scheduler.schedule([Task(SCORE)] * 8, 0)
    statuses, payloads = await within(20, scheduler.get_payload_results(batch_id=0, min_num=8, timeout=20))
    assert ([status.ok for status in statuses], len(payloads)) == ([True] * 8, 8)
    assert await collected(scheduler, 0, seconds=1, min_num=1) == (0, 0)
    for batch_id in range(1, 4):
        scheduler.schedule([Task(SCORE)] * 4, batch_id)
    for batch_id in range(1, 4):
        assert scheduler.has_step(batch_id)
        assert await collected(scheduler, batch_id, min_num=4, timeout=20) == (4, 4)
        assert not scheduler.has_step(batch_id)
    scheduler.schedule([Task(SCORE)] * 2 + [visitor(gate)] * 2, 0)
    await gate.visits(2)
    assert await collected(scheduler, 0, seconds=10, min_num=4, timeout=0.2) == (2, 2), "the time is up"
    scheduler.schedule([Task(SCORE)] * 4, 0)
    assert await collected(scheduler, 0) == (4, 4), "after a time-out"
    scheduler.schedule([Task(SCORE), FAIL, FAIL, FAIL], 1)
    statuses, payloads = await within(20, scheduler.get_payload_results(1))
    assert ([status.ok for status in statuses], len(payloads)) == ([True, False, False, False], 1)
    for clear, later in ((False, (1, 1)), (True, (0, 0))):
        scheduler.schedule([Task(SCORE)] * 3 + [visitor(gate)], 2)
        visit = await gate.visit()
        await scheduler.wait_for(2, min_num=3, clear_timeout_tasks=False)
        assert await collected(scheduler, 2, timeout=0, clear_timeout_tasks=clear) == (3, 3)
        visit.tell("go")
        assert await collected(scheduler, 2) == later
    assert await collected(scheduler, 2, seconds=1, min_num=1, timeout=1) == (0, 0)


async def test_wait_all(scheduler, gate):
    scheduler.schedule([Task(SCORE)] * 4, 0)
    scheduler.schedule([Task(SCORE)] * 3, 1)
    await within(20, scheduler.wait_all(timeout=10.0))
    assert (scheduler.busy_runners, scheduler.running_tasks(0)) == ({}, [])
    assert await collected(scheduler, 0, min_num=4, timeout=0) == (4, 4)
    assert await collected(scheduler, 1, min_num=3, timeout=0) == (3, 3)
    scheduler.schedule([Task(SCORE)] * 2 + [visitor(gate)] * 2, 0)
    await gate.visits(2)
    with pytest.raises(TimeoutError):
        await within(10, scheduler.wait_all(timeout=0.3))
    await within(1, scheduler.wait_all(timeout=5.0))
    scheduler.discard_completed_results(0)


async def test_wait_all_timeout_with_multi_batch(scheduler, gate):
    """Its time-out is one without progress: three batches may take longer together."""
    for batch_id in range(3):
        scheduler.schedule([visitor(gate, id=str(batch_id))], batch_id)
    visits = await gate.visits(2)
    waiting = asyncio.create_task(scheduler.wait_all(timeout=2.0))
    for batch_id in range(3):
        visit = visits.get((str(batch_id), 0)) or await gate.visit()
        asyncio.get_running_loop().call_later(1.2, visit.tell, "go")
        await within(20, visit.gone())
    await turns()
    await within(5, waiting)
    assert [await collected(scheduler, batch_id) for batch_id in range(3)] == [(1, 1)] * 3


async def test_concurrent_operations(scheduler):
    async def scheduled(batch_id, number):
        scheduler.schedule([Task(SCORE)] * number, batch_id)
        return await collected(scheduler, batch_id, min_num=number, timeout=20)

    found = await asyncio.gather(scheduled(0, 3), scheduled(1, 4), scheduled(2, 2))
    assert found == [(3, 3), (4, 4), (2, 2)]


async def test_scheduler_restart_after_stop(harness):
    scheduler = Scheduler(BASE)
    for batch_id, repeat_times in ((0, 1), (1, 2)):
        await within(40, scheduler.start())
        assert scheduler.running
        scheduler.schedule([Task(SCORE, repeat_times=repeat_times)] * 3, batch_id)
        assert await collected(scheduler, batch_id, min_num=3) == (3, 3 * repeat_times)
        await within(20, scheduler.stop())
        assert not scheduler.running


async def test_scheduler_all_methods(scheduler):
    tasks = [Task(SCORE)] * 8
    scheduler.schedule(tasks, batch_id=0)
    assert scheduler.has_step(0)
    assert await collected(scheduler, 0, min_num=8, timeout=20) == (8, 8)
    scheduler.schedule(tasks, batch_id=1)
    scheduler.schedule(tasks[:4], batch_id=2)
    assert not scheduler.has_step(0)
    assert await collected(scheduler, 0, seconds=1, min_num=8) == (0, 0)
    await within(20, scheduler.wait_all())
    assert (scheduler.has_step(1), scheduler.has_step(2)) == (True, True)
    assert await collected(scheduler, 1, seconds=1) == (8, 8)
    assert (scheduler.has_step(1), scheduler.has_step(2)) == (False, True)
    assert await collected(scheduler, 2, seconds=1) == (4, 4)


async def ids(scheduler, batch_id):
    """Batch, task and run of each payload of `tell_all`."""
    _, payloads = await within(20, scheduler.get_payload_results(batch_id))
    return [tuple(json.loads(payload)[:3]) for payload in payloads]


async def test_split_tasks(scheduler):
    configured(scheduler, max_repeat_times_per_runner=2)
    for batch_id, number, repeat_times in ((1, 4, 8), (2, 4, 5), (3, 3, 1)):
        tasks = [Task("batch_deeds:tell_all", repeat_times=repeat_times)] * number
        scheduler.schedule(tasks, batch_id)
        wrappers = scheduler._batches[batch_id].tasks.values()
        assert {wrapper.sub_task_num for wrapper in wrappers} == {-(-repeat_times // 2)}
        everything = [(batch_id, str(task), run) for task in range(number) for run in range(repeat_times)]
        assert await ids(scheduler, batch_id) == everything
        assert await collected(scheduler, batch_id, seconds=1, min_num=1) == (0, 0)


async def test_multi_step_execution(scheduler):
    configured(scheduler, max_repeat_times_per_runner=1)
    tasks = [Task(SCORE, repeat_times=4)] * 2
    for step in range(1, 4):
        scheduler.schedule(tasks, batch_id=step)
        assert await collected(scheduler, step) == (2, 8)


class Counting:
    """Made anew for each run of a task, so it needs no reset."""

    def __init__(self, steps):
        self.steps = steps
        self.played = 0

    def run(self, context):
        self.played += 1
        own = [context.batch, context.task_id, context.run_id]
        return TaskResult(payload=json.dumps([*own, self.played, self.steps]).encode())


class AsyncCounting(Counting):
    """The same, awaited."""

    run = None

    async def arun(self, context):
        await asyncio.sleep(0)
        return Counting.run(self, context)


@pytest.mark.parametrize("kind", [Counting, AsyncCounting])
async def test_non_repeatable_workflow_and_async_workflow(scheduler, kind):
    configured(scheduler, max_repeat_times_per_runner=2)
    tasks = [Task(kind, {"steps": 1}, repeat_times=4)] * 5
    for batch_id in (1, 2):
        scheduler.schedule(tasks, batch_id)
        everything = [(batch_id, str(task), run, 1, 1) for task in range(5) for run in range(4)]
        _, payloads = await within(20, scheduler.get_payload_results(batch_id))
        assert [tuple(json.loads(payload)) for payload in payloads] == everything


async def test_stepwise_experience_eid(scheduler):
    """A run has one payload, whatever number of steps is in it; batch, task and run are in its context."""

    def steps(context):
        own = (context.batch, context.task_id, context.run_id)
        return TaskResult(payload=pickle.dumps([(*own, step) for step in range(3)]))

    configured(scheduler, max_repeat_times_per_runner=2)
    for batch_id in (1, 2):
        scheduler.schedule([Task(steps, repeat_times=4)] * 2, batch_id)
        _, payloads = await within(20, scheduler.get_payload_results(batch_id))
        unpacked = [each for payload in payloads for each in pickle.loads(payload)]
        own = [(batch_id, str(task), run) for task in range(2) for run in range(4)]
        assert unpacked == [(*each, step) for each in own for step in range(3)]


@pytest.mark.parametrize("split", [2, None])
async def test_metric_calculation_with_repeatable_workflow(scheduler, split):
    configured(scheduler, max_repeat_times_per_runner=split)
    scheduler.schedule([Task(SCORE, repeat_times=4), Task(SCORE, repeat_times=8)], 0)
    statuses = await within(20, scheduler.get_statuses(0))
    assert [status.metrics[0]["score"] for status in statuses] == [1.5, 3.5], "in the order of the tasks"


@pytest.mark.parametrize("split", [2, None])
async def test_metric_calculation_with_non_repeatable_workflow(scheduler, split):
    """What a run reports is its own business: here the mean of its steps, and a sum."""

    def play(rewards):
        return TaskResult(metrics={"reward": sum(rewards) / len(rewards), "steps:sum": len(rewards)})

    configured(scheduler, max_repeat_times_per_runner=split)
    tasks = [
        Task(play, {"rewards": [1.0, 2.0, 3.0]}, repeat_times=4),
        Task(play, {"rewards": [2 * i for i in range(8)]}, repeat_times=5),
    ]
    scheduler.schedule(tasks, 0)
    statuses = await within(20, scheduler.get_statuses(0))
    assert [status.metrics[0]["reward"] for status in statuses] == [2.0, 7.0]
    assert [status.metrics[0]["steps:sum"] for status in statuses] == [12, 40]


async def test_collect_results_reads_payloads_returned_by_workflow_runner(scheduler):
    scheduler.schedule([Task(SCORE, repeat_times=2)] * 3, 0)
    assert await collected(scheduler, 0, timeout=20) == (3, 6)


async def test_eval_tasks_do_not_return_training_experiences(scheduler):
    scheduler.schedule([Task(SCORE, repeat_times=2, is_eval=True)] * 2, "0/eval")
    assert await collected(scheduler, "0/eval") == (2, 0)
    scheduler.schedule([Task(SCORE), Task(SCORE, is_eval=True)], 0)
    assert await collected(scheduler, 0) == (2, 1)
    _, payload, _, _ = await within(
        20, scheduler.runners[0].run_with_retry(Task(SCORE, is_eval=True), 2, 0, 9.0)
    )
    assert payload == b""


async def test_get_statuses_skips_payload_deserialization(scheduler):
    """Payloads are the user's bytes: nothing reads them."""
    no_pickle = b"\x80\x05 this is no pickle"
    for batch_id in (0, 1):
        scheduler.schedule([Task(lambda: TaskResult(payload=no_pickle), repeat_times=2)] * 2, batch_id)
    assert all(status.ok for status in await within(20, scheduler.get_statuses(0)))
    statuses, payloads = await within(20, scheduler.get_payload_results(1))
    assert (len(statuses), payloads) == (2, [no_pickle] * 4)


async def test_get_payload_results_keeps_payloads_serialized(scheduler):
    """One for each run; theirs has one for each sub-task."""
    scheduler.schedule([Task(SCORE, repeat_times=2)] * 2, 0)
    statuses, payloads = await within(20, scheduler.get_payload_results(0))
    assert (len(statuses), payloads) == (2, [b"0/0", b"0/1", b"1/0", b"1/1"])
