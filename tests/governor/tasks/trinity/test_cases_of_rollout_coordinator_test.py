"""The cases of Trinity-RFT's tests/explorer/rollout_coordinator_test.py, each under its name, against real Ray; and the
life of a pipeline that is an object.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from governor.errors import GovernorError
from governor.tasks import BatchState, RolloutCoordinator, Task
from tests.support.tasks.scheduling import BASE, ObjectPipeline, visitor, within

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]
SCORE = "batch_deeds:score"


@pytest.fixture
def pipeline(coordinator):
    coordinator.experience_pipeline = ObjectPipeline()
    return coordinator.experience_pipeline


async def test_finalize_train_batch_processes_scheduler_payloads(coordinator, pipeline):
    assert coordinator.running
    tasks = [Task(SCORE, id="a", repeat_times=3), Task(SCORE, id="b", repeat_times=1)]
    await coordinator.submit_batch(batch_id=1, tasks=tasks, batch_type="train")
    assert isinstance(coordinator.pending_batches[1], BatchState)
    result = await within(20, coordinator.finalize_train_batch(1, timeout=20.0))
    assert result["finished_task_count"] == 2
    assert result["metrics"]["rollout/score/mean"] == 0.5
    assert result["metrics"]["experience_pipeline/experience_count"] == 4.0
    assert pipeline.calls == [("process", [b"a/0", b"a/1", b"a/2", b"b/0"])], "task by task, run by run"
    assert 1 not in coordinator.pending_batches
    with pytest.raises(KeyError, match="not registered"):
        await coordinator.finalize_train_batch(1, timeout=1.0)


async def test_finalize_train_batch_supports_partial_finalize(coordinator, pipeline, gate):
    tasks = [visitor(gate, id="left"), Task(SCORE, id="done")]
    await coordinator.submit_batch(batch_id=2, tasks=tasks, batch_type="train", min_wait_num=1)
    visit = await gate.visit()
    result = await within(20, coordinator.finalize_train_batch(2, timeout=20.0))
    assert result["finished_task_count"] == 1
    assert pipeline.calls == [("process", [b"done/0"])]
    await within(1, visit.gone())
    assert 2 not in coordinator.pending_batches


async def test_finalize_train_batch_times_out_without_any_results(coordinator, gate):
    await coordinator.submit_batch(batch_id=7, tasks=[visitor(gate)], batch_type="train")
    with pytest.raises(TimeoutError, match="Timeout waiting for batch 7"):
        await within(5, coordinator.finalize_train_batch(7, timeout=0.1))
    (await gate.visit()).tell("go")
    assert (await within(5, coordinator.finalize_train_batch(7)))["finished_task_count"] == 1, (
        "nothing is lost"
    )


async def test_finalize_eval_batch_aggregates_eval_metrics(coordinator, pipeline):
    tasks = [Task(SCORE, repeat_times=2, is_eval=True)] * 2
    await coordinator.submit_batch(batch_id="3/eval_set", tasks=tasks, batch_type="eval")
    result = await within(20, coordinator.finalize_eval_batch("3/eval_set", timeout=20.0))
    assert result["finished_task_count"] == 2
    assert result["metrics"]["eval/eval_set/score/mean@2"] == 0.5
    assert pipeline.calls == []
    assert "3/eval_set" not in coordinator.pending_batches


async def test_finalize_train_batch_rejects_eval_batches_before_waiting(coordinator, gate):
    await coordinator.submit_batch(batch_id="4/eval_set", tasks=[visitor(gate)], batch_type="eval")
    with pytest.raises(ValueError, match="expected train"):
        await within(1, coordinator.finalize_train_batch("4/eval_set", timeout=600))
    (await gate.visit()).tell("go")
    await within(5, coordinator.finalize_eval_batch("4/eval_set"))


async def test_terminal_batches_are_not_reusable_after_finalize(coordinator):
    for batch_id, batch_type in (("5/eval_set", "eval"), (6, "train")):
        for _ in range(2):  # its id is free again
            await coordinator.submit_batch(batch_id=batch_id, tasks=[Task(SCORE)], batch_type=batch_type)
            with pytest.raises(ValueError, match="already active"):
                await coordinator.submit_batch(batch_id=batch_id, tasks=[Task(SCORE)], batch_type=batch_type)
            await within(20, getattr(coordinator, f"finalize_{batch_type}_batch")(batch_id))
            for finalize in (coordinator.finalize_train_batch, coordinator.finalize_eval_batch):
                with pytest.raises(KeyError, match="not registered"):
                    await finalize(batch_id, timeout=0.1)


async def test_abort_batch_marks_batch_aborted_and_evicts_it(coordinator, gate):
    await coordinator.submit_batch(batch_id=4, tasks=[visitor(gate)] * 2, batch_type="train")
    state = coordinator.pending_batches[4]
    visits = await gate.visits(2)
    await within(5, coordinator.abort_batch(4, reason="shutdown"))
    for visit in visits.values():
        await within(1, visit.gone())
    assert (state.state, 4 in coordinator.pending_batches) == ("aborted", False)
    assert state.final_result["finished_task_count"] == 0
    with pytest.raises(KeyError, match="not registered"):
        await coordinator.finalize_train_batch(4, timeout=0.1)


async def test_shutdown_closes_internal_dependencies(harness):
    pipeline = ObjectPipeline()
    coordinator = RolloutCoordinator(replace(BASE, runner_per_model=1), pipeline=pipeline)
    with pytest.raises(RuntimeError, match=r"RolloutCoordinator\.prepare\(\) must be called first"):
        await coordinator.submit_batch(batch_id=1, tasks=[Task(SCORE)], batch_type="train")
    with pytest.raises(RuntimeError, match=r"not initialized: call prepare\(\)"):
        await coordinator.process_experiences([b"x"])
    await within(20, asyncio.gather(coordinator.prepare(), coordinator.prepare()))
    assert coordinator.running
    assert (await coordinator.process_experiences([b"x"])).popitem()[1] == 1.0
    await within(20, asyncio.gather(coordinator.shutdown(), coordinator.shutdown()))
    assert pipeline.calls == ["prepare", ("process", [b"x"]), "close"]
    assert (coordinator.running, coordinator.scheduler.running) == (False, False)
    await within(20, coordinator.prepare())
    await within(20, coordinator.shutdown())
    assert pipeline.calls[-2:] == ["prepare", "close"], "again, in the same order"


async def test_what_is_no_pipeline_is_refused():
    with pytest.raises(TypeError, match="prepare, process_serialized_chunks and close, not int"):
        RolloutCoordinator(pipeline=7)


async def test_tasks_may_come_from_an_iterator(coordinator):
    await coordinator.submit_batch(batch_id=1, tasks=(Task(SCORE) for _ in "ab"), batch_type="train")
    assert (await within(20, coordinator.finalize_train_batch(1)))["finished_task_count"] == 2
    coordinator.scheduler.schedule(map(Task, [SCORE] * 3), batch_id=2)
    assert len(await within(20, coordinator.scheduler.get_statuses(2))) == 3


@pytest.mark.parametrize("batch_id", [None, 1.5, [1]])
async def test_another_kind_of_batch_id_is_refused(coordinator, batch_id):
    with pytest.raises(TypeError, match="a batch id must be an int or a str, not "):
        await coordinator.submit_batch(batch_id=batch_id, tasks=[Task(SCORE)], batch_type="train")
    with pytest.raises(TypeError, match="a batch id must be an int or a str, not "):
        coordinator.scheduler.schedule([Task(SCORE)], batch_id)
    assert not coordinator.pending_batches


async def test_payloads_that_are_no_list_are_refused(coordinator, pipeline):
    """`run_with_retry` gives bytes: the pipeline would get its numbers."""
    with pytest.raises(TypeError, match="payloads must be a list of bytes, not bytes"):
        await coordinator.process_experiences(b"abc")
    assert pipeline.calls == []


async def test_a_pipeline_that_is_not_async_is_told_so(coordinator):
    pipeline = coordinator.experience_pipeline = ObjectPipeline()
    pipeline.process_serialized_chunks = lambda chunks: {"count": len(chunks)}
    with pytest.raises(TypeError, match=r"process_serialized_chunks must be async .*, but returned dict"):
        await coordinator.process_experiences([b"x"])
    coordinator.experience_pipeline = dict.fromkeys
    with pytest.raises(TypeError, match="pipeline's fromkeys must be async"):
        await coordinator.process_experiences([b"x"])
    pipeline.prepare = lambda: None
    with pytest.raises(TypeError, match=r"pipeline's prepare must be async .*, but returned NoneType"):
        await RolloutCoordinator(pipeline=pipeline).prepare()


async def test_a_pipeline_that_cannot_be_prepared(harness):
    pipeline = ObjectPipeline()
    pipeline.errors["prepare"] = OSError("no such table")
    coordinator = RolloutCoordinator(BASE, pipeline=pipeline)
    with pytest.raises(OSError, match="no such table"):
        await coordinator.prepare()
    assert (coordinator.running, coordinator.scheduler.running, pipeline.calls) == (False, False, ["prepare"])
    await within(5, coordinator.shutdown())
    assert pipeline.calls == ["prepare"], "there is nothing to close"


async def test_a_prepared_pipeline_is_closed_when_the_scheduler_cannot_start(harness):
    pipeline = ObjectPipeline()
    coordinator = RolloutCoordinator(replace(BASE, address="127.0.0.1:1"), pipeline=pipeline)
    with pytest.raises(GovernorError, match="cannot go to"):
        await within(20, coordinator.prepare())
    assert (coordinator.running, pipeline.calls) == (False, ["prepare", "close"])


async def test_a_shutdown_while_the_pipeline_is_prepared(harness):
    pipeline, go = ObjectPipeline(), asyncio.Event()
    coordinator = RolloutCoordinator(BASE, pipeline=pipeline)
    pipeline.prepare = go.wait
    preparing = asyncio.create_task(coordinator.prepare())
    await asyncio.sleep(0)
    await within(5, coordinator.shutdown())
    go.set()
    with pytest.raises(RuntimeError, match="shut down before it was prepared"):
        await within(5, preparing)
    assert (coordinator.running, coordinator.scheduler.running, pipeline.calls) == (False, False, ["close"])


async def test_shutdown_waits_for_a_pipeline_at_work_and_no_longer_than_stop_timeout(harness):
    """What it was given is kept: another prepare, and the batch can be finalized."""
    pipeline = ObjectPipeline()
    config = replace(BASE, runner_per_model=1, stop_timeout=2.0)
    coordinator = RolloutCoordinator(config, pipeline=pipeline)
    await within(20, coordinator.prepare())
    pipeline.hangs = "process"
    await coordinator.submit_batch(batch_id=1, tasks=[Task(SCORE)], batch_type="train")
    finalizing = asyncio.create_task(coordinator.finalize_train_batch(1))
    await within(20, pipeline.hanging.wait())
    await within(10, coordinator.shutdown())
    with pytest.raises(RuntimeError, match="shut down while its pipeline was at work"):
        await within(1, finalizing)
    assert pipeline.calls[-1] == "close"
    pipeline.hangs = None
    await within(20, coordinator.prepare())
    assert (await within(5, coordinator.finalize_train_batch(1)))["finished_task_count"] == 1
    assert pipeline.calls.count(("process", [b"0/0"])) == 2
    await within(10, coordinator.shutdown())
