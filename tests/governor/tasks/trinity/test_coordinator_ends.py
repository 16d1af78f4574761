"""`RolloutCoordinator` against real Ray: abort, shutdown, and its life in an actor."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace

import pytest
import ray

from governor.errors import ConductorError
from governor.tasks import (
    GraphError,
    QueueFull,
    RolloutCoordinator,
    Scheduler,
    Task,
)
from tests.support.tasks.scheduling import BASE, ObjectPipeline, Pipeline, configure, turns, visitor, within

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]
SCORE = "batch_deeds:score"


# -- abort ----------------------------------------------------------------------------------------------------


async def test_abort_wakes_a_finalize_that_waits_at_once(coordinator, gate):
    """Not after the whole time-out, and not after the grace of a task that does not end either."""
    configure(coordinator, grace=5.0)
    for batch_type in ("train", "eval"):
        tasks = [visitor(gate, args={"stubborn": True})]
        await coordinator.submit_batch(batch_id=1, tasks=tasks, batch_type=batch_type)
        state = coordinator.pending_batches[1]
        visit = await gate.visit()
        finalize = getattr(coordinator, f"finalize_{batch_type}_batch")
        waiting = asyncio.create_task(finalize(1, timeout=600))
        await turns()
        aborting = asyncio.create_task(coordinator.abort_batch(1, reason="enough"))
        result = await within(5, waiting)
        assert not aborting.done(), "its runner is not free yet"
        assert (result["finished_task_count"], result["batch_type"]) == (0, batch_type)
        assert await within(1, finalize(1)) == result
        with pytest.raises(ValueError, match="already active"):
            await coordinator.submit_batch(batch_id=1, tasks=[Task(SCORE)], batch_type="train")
        await within(5, aborting)
        await within(1, visit.gone())
        assert state.state == "aborted"
        with pytest.raises(KeyError):
            await finalize(1)


async def test_abort_can_keep_what_was_done(coordinator, gate):
    await coordinator.submit_batch(
        batch_id=1, tasks=[visitor(gate, id="a", repeat_times=2), Task(SCORE, id="b")], batch_type="train"
    )
    (await gate.visit()).tell("go")
    await gate.visit()
    await coordinator.scheduler.wait_for(1, min_num=1, clear_timeout_tasks=False)
    waiting = asyncio.create_task(coordinator.finalize_train_batch(1))
    await turns()
    await within(5, coordinator.abort_batch(1, reason="enough", keep_partial_results=True))
    result = await within(1, waiting)
    assert result["finished_task_count"] == 2
    assert result["metrics"]["rollout/run/mean"] == 0
    assert not coordinator.scheduler.has_step(1)


async def test_an_abort_goes_on_when_its_caller_is_cancelled(coordinator, gate):
    await coordinator.submit_batch(batch_id=1, tasks=[visitor(gate)], batch_type="train")
    visit = await gate.visit()
    waiting = asyncio.create_task(coordinator.finalize_train_batch(1))
    aborting = asyncio.create_task(coordinator.abort_batch(1, reason="enough"))
    await asyncio.sleep(0)
    aborting.cancel()
    await asyncio.gather(aborting, return_exceptions=True)
    assert (await within(5, waiting))["finished_task_count"] == 0
    await within(5, coordinator.abort_batch(1, reason="again"))
    await within(5, visit.gone())
    assert 1 not in coordinator.pending_batches


async def test_abort_ends_a_pipeline_and_wakes_all_who_wait_for_it(coordinator):
    coordinator.experience_pipeline = pipeline = Pipeline()
    pipeline.open.clear()
    await coordinator.submit_batch(batch_id=1, tasks=[Task(SCORE)], batch_type="train")
    state = coordinator.pending_batches[1]
    waits = [asyncio.create_task(coordinator.finalize_train_batch(1)) for _ in range(2)]
    await within(20, pipeline.begun.wait())
    assert state.state == "finalizing"
    await within(5, coordinator.abort_batch(1, reason="it takes too long"))
    results = await within(1, asyncio.gather(*waits))
    pipeline.open.set()
    await turns()
    assert [result["finished_task_count"] for result in results] == [0, 0]
    assert (state.state, pipeline.taken) == ("aborted", [])
    assert not coordinator.pending_batches
    assert not coordinator.scheduler.has_step(1)


async def test_an_abort_of_what_the_pipeline_has_finished(coordinator):
    coordinator.experience_pipeline = Pipeline()
    await coordinator.submit_batch(batch_id=1, tasks=[Task(SCORE)], batch_type="train")
    state = coordinator.pending_batches[1]
    caller = asyncio.create_task(coordinator.finalize_train_batch(1))
    await within(20, coordinator.experience_pipeline.begun.wait())
    caller.cancel()
    await within(5, asyncio.shield(coordinator._finalizations[1].result))
    await within(1, coordinator.abort_batch(1, reason="too late"))
    assert state.state == "finalized"
    assert not coordinator.pending_batches


# -- the end --------------------------------------------------------------------------------------------------


async def test_shutdown_ends_a_finalize_with_an_error_and_nothing_goes_to_the_pipeline(harness, gate):
    pipeline = Pipeline()
    coordinator = RolloutCoordinator(BASE, pipeline=pipeline)
    await coordinator.prepare()
    await coordinator.prepare()
    await coordinator.submit_batch(batch_id=2, tasks=[Task(SCORE)], batch_type="train")
    await coordinator.scheduler.wait_for(2)
    enough = [Task(SCORE), visitor(gate, id="left")]
    await coordinator.submit_batch(batch_id=3, tasks=enough, batch_type="train", min_wait_num=1)
    await coordinator.scheduler.wait_for(3, min_num=1, clear_timeout_tasks=False)
    tasks = [visitor(gate, id="a"), Task(SCORE, id="b")]
    await coordinator.submit_batch(batch_id=1, tasks=tasks, batch_type="train")
    await coordinator.submit_batch(batch_id="1/e", tasks=[visitor(gate)], batch_type="eval")
    await gate.visits(2)
    waits = [
        asyncio.create_task(coordinator.finalize_train_batch(1)),
        asyncio.create_task(coordinator.finalize_eval_batch("1/e")),
    ]
    await turns()
    await within(10, coordinator.shutdown())
    for error in await within(2, asyncio.gather(*waits, return_exceptions=True)):
        assert isinstance(error, RuntimeError)
    assert pipeline.taken == []
    assert (await within(5, coordinator.finalize_train_batch(2)))["finished_task_count"] == 1
    assert (await within(5, coordinator.finalize_train_batch(3)))["finished_task_count"] == 1
    for batch_id in (1, "1/e"):
        await within(5, coordinator.abort_batch(batch_id, reason="the end"))
    assert not coordinator.pending_batches
    await coordinator.shutdown()


async def test_a_process_belongs_to_one_ray_cluster(harness):
    with pytest.raises(ConductorError, match="cannot go to"):
        await Scheduler(replace(BASE, address="127.0.0.1:1")).start()


async def test_a_coordinator_in_an_actor(harness):
    config = replace(BASE, max_pending=10)
    actor = RolloutCoordinator.get_actor(config, pipeline=taken)

    async def call(method, *arguments, **more):
        return await within(40, getattr(actor, method).remote(*arguments, **more))

    await call("prepare")
    assert await call("explain", 1) == []
    assert await call("get_all_state") == {}
    submit = {"batch_id": 1, "batch_type": "train"}
    tasks = [Task(SCORE, repeat_times=2), Task("deeds:sleep", {"seconds": 0.5})]
    await call("submit_batch", tasks=tasks, **submit)
    with pytest.raises(ValueError, match="already active"):
        await call("submit_batch", tasks=[Task(SCORE)], **submit)
    results = await asyncio.gather(*(call("finalize_train_batch", 1) for _ in range(2)))
    assert results[0] == results[1]
    assert results[0]["metrics"]["payloads"] == 2
    with pytest.raises(KeyError):
        await call("finalize_train_batch", 1)
    with pytest.raises(GraphError, match="already used") as caught:
        await call("submit_batch", tasks=[Task(SCORE, id="a")] * 2, **submit)
    assert caught.value.cause.faults
    with pytest.raises(QueueFull, match="max_pending=10"):
        await call("submit_batch", tasks=[Task(SCORE, repeat_times=11)], **submit)
    await call("shutdown")
    ray.kill(actor)


async def test_get_actor_by_position_with_a_pipeline_that_is_an_object(harness):
    models = ["m"]
    actor = RolloutCoordinator.get_actor(
        replace(BASE, runner_per_model=1), models, [["judge"]], ObjectPipeline()
    )
    await within(40, actor.prepare.remote())
    await within(20, actor.submit_batch.remote(batch_id=1, tasks=[Task(SCORE)] * 2, batch_type="train"))
    result = await within(20, actor.finalize_train_batch.remote(1))
    assert result["metrics"]["experience_pipeline/experience_count"] == 2.0
    with pytest.raises(KeyError, match="not registered"):
        await within(20, actor.finalize_train_batch.remote(1))
    await within(20, actor.shutdown.remote())
    ray.kill(actor)
    arguments = inspect.signature(RolloutCoordinator.finalize_train_batch).parameters
    assert list(arguments) == ["self", "batch_id", "timeout"], "without what Ray adds for actors"


async def taken(payloads):
    return {"payloads": float(len(payloads))}
