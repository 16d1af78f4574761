"""`RolloutCoordinator` against real Ray: from submission to the final metrics, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
import inspect

import numpy as np
import pytest

from governor.tasks import (
    BatchLifecycleState,
    BatchState,
    GraphError,
    OverRollout,
    RolloutCoordinator,
    Task,
)
from tests.support.tasks.scheduling import Pipeline, configure, turns, visitor, within

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]
SCORE = "batch_deeds:score"


# -- life of a batch ------------------------------------------------------------------------------------------


async def test_arguments_and_defaults_are_those_that_users_know():
    def keywords(method):
        found = list(inspect.signature(method).parameters.values())[1:]
        return [
            (p.name, None if p.default is p.empty else p.default) for p in found if p.kind is p.KEYWORD_ONLY
        ]

    assert [name for name, _ in keywords(RolloutCoordinator.submit_batch)] == [
        "batch_id",
        "tasks",
        "batch_type",
        "min_wait_num",
    ]
    assert keywords(RolloutCoordinator.finalize_train_batch) == [("timeout", None)]
    assert keywords(RolloutCoordinator.finalize_eval_batch) == [("timeout", None)]
    assert keywords(RolloutCoordinator.abort_batch) == [("reason", None), ("keep_partial_results", False)]
    assert [state.value for state in BatchLifecycleState] == [
        "pending",
        "running",
        "finalizing",
        "finalized",
        "aborted",
    ]
    state = BatchState(1, "train", 4)
    assert (state.statuses, state.min_wait_num, state.state, state.final_result) == (
        {},
        None,
        "pending",
        None,
    )


async def test_a_train_batch_and_its_metrics(coordinator):
    coordinator.experience_pipeline = pipeline = Pipeline()
    tasks = [Task(SCORE, id="a", repeat_times=3), Task(SCORE, id="b", repeat_times=1)]
    await coordinator.submit_batch(batch_id=1, tasks=tasks, batch_type="train")
    state = coordinator.pending_batches[1]
    assert (state.state, state.expected_task_count, state.min_wait_num) == ("running", 2, None)
    result = await within(20, coordinator.finalize_train_batch(1))
    metrics = result.pop("metrics")
    assert result == {"batch_id": 1, "batch_type": "train", "finished_task_count": 2}
    assert [metrics[f"rollout/score/{each}"] for each in ("mean", "max", "min")] == [0.5, 1.0, 0.0]
    assert (metrics["rollout/finished_task_count"], metrics["pipeline/payloads"]) == (2, 4)
    assert "rollout/time/run_execution/mean" in metrics
    assert pipeline.taken == [[b"a/0", b"a/1", b"a/2", b"b/0"]]
    assert (state.state, state.final_result["batch_id"]) == ("finalized", 1)
    with pytest.raises(KeyError):
        await coordinator.finalize_train_batch(1)


@pytest.mark.parametrize("detailed", [False, True])
async def test_an_eval_batch_and_its_metrics(coordinator, detailed):
    configure(coordinator, detailed_stats=detailed)
    tasks = [Task(SCORE, repeat_times=4, is_eval=True), Task(SCORE, repeat_times=4)]
    await coordinator.submit_batch(batch_id="7/aime", tasks=tasks, batch_type="eval")
    before = np.random.mtrand._rand.get_state()[1].copy()
    result = await within(20, coordinator.finalize_eval_batch("7/aime"))
    assert (np.random.mtrand._rand.get_state()[1] == before).all(), (
        "the global random state is nobody's to reseed"
    )
    metrics = result["metrics"]
    name, end = "eval/aime/score", "/mean" if detailed else ""
    assert name + end not in metrics, "tasks of an evaluation batch are evaluation, whatever they say"
    assert metrics[f"{name}/mean@4{end}"] == 1.5
    assert metrics[f"{name}/std@4{end}"] == pytest.approx(1.25**0.5)
    for size in (2, 4):
        assert metrics[f"{name}/worst@{size}{end}"] < 1.5 < metrics[f"{name}/best@{size}{end}"]
    assert metrics["eval/aime/finished_task_count"] == result["finished_task_count"] == 2
    assert (f"{name}/mean@4/std" in metrics) is detailed
    with pytest.raises(KeyError):
        await coordinator.finalize_eval_batch("7/aime")


async def test_ids_and_types_that_do_not_fit(coordinator, gate):
    await coordinator.submit_batch(batch_id=1, tasks=[visitor(gate)], batch_type="train")
    await coordinator.submit_batch(batch_id="1/e", tasks=[Task(SCORE)], batch_type="eval")
    with pytest.raises(ValueError, match="1 is already active"):
        await coordinator.submit_batch(batch_id=1, tasks=[Task(SCORE)], batch_type="eval")
    with pytest.raises(ValueError, match="test"):
        await coordinator.submit_batch(batch_id=2, tasks=[Task(SCORE)], batch_type="test")
    with pytest.raises(ValueError, match="min_wait_num"):
        await coordinator.submit_batch(batch_id=2, tasks=[Task(SCORE)], batch_type="train", min_wait_num=-1)
    with pytest.raises(GraphError):
        await coordinator.submit_batch(batch_id=2, tasks=[Task(SCORE, id="a")] * 2, batch_type="train")
    with pytest.raises(ValueError, match="is of type train, expected eval"):
        await coordinator.finalize_eval_batch(1)
    with pytest.raises(ValueError, match="is of type eval, expected train"):
        await coordinator.finalize_train_batch("1/e")
    for finalize in (coordinator.finalize_train_batch, coordinator.finalize_eval_batch):
        with pytest.raises(KeyError, match="2 is not registered"):
            await finalize(2)
    await coordinator.abort_batch(2, reason="unknown: nothing")
    (await gate.visit()).tell("go")
    assert (await within(20, coordinator.finalize_train_batch(1)))["finished_task_count"] == 1
    assert (await within(20, coordinator.finalize_eval_batch("1/e")))["finished_task_count"] == 1


async def test_an_empty_batch(coordinator):
    for batch_type in ("train", "eval"):
        await coordinator.submit_batch(batch_id=1, tasks=[], batch_type=batch_type)
        assert coordinator.pending_batches[1].state == "pending"
        finalize = getattr(coordinator, f"finalize_{batch_type}_batch")
        assert (await within(1, finalize(1)))["finished_task_count"] == 0


async def test_concurrent_callers_get_equal_results_and_the_pipeline_works_once(coordinator, gate):
    coordinator.experience_pipeline = pipeline = Pipeline()
    await coordinator.submit_batch(batch_id=1, tasks=[visitor(gate)], batch_type="train")
    callers = [asyncio.create_task(coordinator.finalize_train_batch(1)) for _ in range(3)]
    (await gate.visit()).tell("go")
    results = await within(20, asyncio.gather(*callers))
    assert results[0] == results[1] == results[2]
    results[0]["metrics"].clear()
    assert results[1]["metrics"], "each has its own"
    assert len(pipeline.taken) == 1


async def test_the_timeout_of_a_caller_is_its_own(coordinator, gate):
    await coordinator.submit_batch(batch_id=1, tasks=[visitor(gate)], batch_type="train")
    patient = asyncio.create_task(coordinator.finalize_train_batch(1, timeout=600))
    await turns()
    with pytest.raises(TimeoutError):
        await within(2, coordinator.finalize_train_batch(1, timeout=0.05))
    (await gate.visit()).tell("go")
    assert (await within(5, patient))["finished_task_count"] == 1
    await coordinator.submit_batch(batch_id="1/e", tasks=[visitor(gate)], batch_type="eval")
    patient = asyncio.create_task(coordinator.finalize_eval_batch("1/e", timeout=600))
    await gate.visit()
    hasty = await within(5, coordinator.finalize_eval_batch("1/e", timeout=0.05))
    assert hasty == await within(1, patient)


# -- time -----------------------------------------------------------------------------------------------------


async def test_eval_never_raises_for_time(coordinator, gate):
    tasks = [visitor(gate, id=name, repeat_times=2) for name in "ab"]
    for partial, count in ((False, 0), (True, 1)):
        configure(coordinator, over_rollout=OverRollout(return_partial_tasks=partial))
        await coordinator.submit_batch(batch_id="1/e", tasks=tasks, batch_type="eval")
        visits = await gate.visits(2)
        visits["a", 0].tell("go")
        await gate.visit()
        result = await within(5, coordinator.finalize_eval_batch("1/e", timeout=0.05))
        assert result["finished_task_count"] == count


async def test_finalize_after_a_timeout_loses_no_finished_result(coordinator, gate):
    coordinator.experience_pipeline = pipeline = Pipeline()
    await coordinator.submit_batch(
        batch_id=1, tasks=[visitor(gate, id=name) for name in "ab"], batch_type="train"
    )
    with pytest.raises(TimeoutError, match="a"):
        await within(5, coordinator.finalize_train_batch(1, timeout=0))
    visits = await gate.visits(2)
    visits["a", 0].tell("go")
    await coordinator.scheduler.wait_for(1, min_num=1, clear_timeout_tasks=False)
    with pytest.raises(TimeoutError, match="b"):
        await within(5, coordinator.finalize_train_batch(1, timeout=0.05))
    assert (coordinator.pending_batches[1].state, pipeline.taken) == ("running", [])
    visits["b", 0].tell("go")
    assert (await within(5, coordinator.finalize_train_batch(1)))["finished_task_count"] == 2
    assert pipeline.taken == [[b"a/0", b"b/0"]]


@pytest.mark.parametrize("number", [0, 2])
async def test_min_wait_num_is_enforced_at_the_timeout(coordinator, gate, number):
    tasks = [visitor(gate, id=name) for name in "abc"]
    await coordinator.submit_batch(batch_id=1, tasks=tasks, batch_type="train", min_wait_num=number)
    first = await gate.visits(2)
    if number:
        first.pop(next(iter(first))).tell("go")
        first["next", 0] = await gate.visit()
    with pytest.raises(TimeoutError):
        await within(5, coordinator.finalize_train_batch(1, timeout=0.1))
    for visit in first.values():
        visit.tell("go")
    result = await within(5, coordinator.finalize_train_batch(1))
    assert result["finished_task_count"] >= max(1, number)


async def test_failures_alone_are_not_enough_for_a_train_batch(coordinator, gate):
    tasks = [visitor(gate, id=name) for name in "abc"]
    await coordinator.submit_batch(batch_id=1, tasks=tasks, batch_type="train", min_wait_num=1)
    for visit in (await gate.visits(2)).values():
        visit.tell("fail")
    last = await gate.visit()
    with pytest.raises(TimeoutError):
        await within(5, coordinator.finalize_train_batch(1, timeout=0.05))
    last.tell("go")
    assert (await within(5, coordinator.finalize_train_batch(1)))["finished_task_count"] == 3


@pytest.mark.parametrize("partial", [False, True])
async def test_over_rollout_leaves_a_share_behind(coordinator, gate, partial):
    """ceil(3 * (1 - 0.4)) = 2 of 3 are enough."""
    coordinator.experience_pipeline = pipeline = Pipeline()
    over = OverRollout(ratio=0.4, wait_after_min=0.0, return_partial_tasks=partial)
    configure(coordinator, over_rollout=over)
    tasks = [visitor(gate, id="a", repeat_times=2), Task(SCORE, id="b"), Task(SCORE, id="c")]
    await coordinator.submit_batch(batch_id=1, tasks=tasks, batch_type="train")
    assert coordinator.pending_batches[1].min_wait_num == 2
    (await gate.visit()).tell("go")
    straggler = await gate.visit()
    result = await within(5, coordinator.finalize_train_batch(1))
    await within(1, straggler.gone())
    assert result["finished_task_count"] == (3 if partial else 2)
    assert pipeline.taken == [[b"a/0", b"b/0", b"c/0"] if partial else [b"b/0", b"c/0"]]


# -- the pipeline ---------------------------------------------------------------------------------------------


async def test_after_a_pipeline_error_finalize_can_be_called_again_and_nothing_is_lost(coordinator):
    coordinator.experience_pipeline = pipeline = Pipeline()
    pipeline.error = OSError("disk full")
    await coordinator.submit_batch(
        batch_id=1, tasks=[Task(SCORE, id="a", repeat_times=2)], batch_type="train"
    )
    for _ in range(2):
        with pytest.raises(OSError, match="disk full"):
            await within(20, coordinator.finalize_train_batch(1))
        assert coordinator.pending_batches[1].state == "running"
    pipeline.error = None
    assert (await within(5, coordinator.finalize_train_batch(1)))["metrics"]["pipeline/payloads"] == 2
    assert pipeline.taken == [[b"a/0", b"a/1"]]


async def test_a_cancelled_caller_gives_no_payload_to_the_pipeline_twice(coordinator):
    coordinator.experience_pipeline = pipeline = Pipeline()
    pipeline.open.clear()
    await coordinator.submit_batch(batch_id=1, tasks=[Task(SCORE)], batch_type="train")
    caller = asyncio.create_task(coordinator.finalize_train_batch(1))
    await within(20, pipeline.begun.wait())
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    pipeline.open.set()
    assert (await within(5, coordinator.finalize_train_batch(1)))["metrics"]["pipeline/payloads"] == 1
    assert len(pipeline.taken) == 1


async def test_the_timeout_of_a_caller_holds_while_the_pipeline_works_and_its_result_is_kept(coordinator):
    coordinator.experience_pipeline = pipeline = Pipeline()
    pipeline.open.clear()
    await coordinator.submit_batch(batch_id=1, tasks=[Task(SCORE)], batch_type="train")
    first = asyncio.create_task(coordinator.finalize_train_batch(1, timeout=600))
    await within(20, pipeline.begun.wait())
    for _ in range(2):
        with pytest.raises(TimeoutError, match="its result is kept"):
            await within(5, coordinator.finalize_train_batch(1, timeout=0.01))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    pipeline.open.set()
    await within(5, asyncio.shield(coordinator._finalizations[1].result))
    result = await within(5, coordinator.finalize_train_batch(1, timeout=0.01))
    assert result["metrics"]["pipeline/payloads"] == len(pipeline.taken) == 1
    assert 1 not in coordinator.pending_batches


async def test_tasks_that_failed_may_count_for_min_num(coordinator):
    configure(coordinator, min_num_counts="ended")
    tasks = [Task(SCORE, {"no": "such argument"}, retries=0), Task("deeds:sleep", {"seconds": 60})]
    await coordinator.submit_batch(batch_id=1, tasks=tasks, batch_type="train", min_wait_num=1)
    assert (await within(20, coordinator.finalize_train_batch(1)))["finished_task_count"] == 1


async def test_process_experiences(coordinator):
    assert await coordinator.process_experiences([]) == {}
    with pytest.raises(RuntimeError, match="Experience pipeline is not initialized"):
        await coordinator.process_experiences([b"x"])
    await coordinator.submit_batch(batch_id=1, tasks=[Task(SCORE)], batch_type="train")
    assert (await within(20, coordinator.finalize_train_batch(1)))["finished_task_count"] == 1
    coordinator.experience_pipeline = Pipeline()
    assert await coordinator.process_experiences([b"x"]) == {"pipeline/payloads": 1.0}
