"""`Scheduler` against real Ray: its names, arguments, defaults and formulas."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time

import pytest
import pytest_asyncio

from governor.tasks import (
    DynamicTimeout,
    GraphError,
    OverRollout,
    QueueFull,
    RunningTaskState,
    Scheduler,
    SchedulerConfig,
    Status,
    Task,
    TaskResult,
    TaskWrapper,
    sort_batch_id,
)
from tests.support.tasks.scheduling import BASE, configured, visitor, within

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pool(harness):
    async with Scheduler(BASE, rollout_model=["m0", "m1"], auxiliary_models=[["judge"]]) as scheduler:
        scheduler.config = BASE
        yield scheduler


# -- schedule -------------------------------------------------------------------------------------------------


async def test_arguments_and_defaults_are_those_that_users_know():
    def defaults(method):
        found = inspect.signature(method).parameters.values()
        return {p.name: p.default for p in found if p.default is not p.empty}

    waits = {"min_num": None, "timeout": None, "clear_timeout_tasks": True, "return_partial_tasks": False}
    assert (
        defaults(Scheduler.get_statuses)
        == defaults(Scheduler.get_payload_results)
        == waits | {"order": "tasks"}
    )
    assert defaults(Scheduler.abort_batch) == {"return_partial_tasks": False, "restart_runners": True}
    assert defaults(Scheduler.wait_all) == {"timeout": None, "clear_timeout_tasks": True}
    assert defaults(Scheduler.dynamic_timeout) == {"timeout": None}
    config = SchedulerConfig()
    assert (config.runner_per_model, config.max_timeout, config.max_retry_times) == (8, 1800.0, 2)
    assert config.max_repeat_times_per_runner is None
    assert (config.detailed_stats, config.over_rollout) == (False, OverRollout(0.0, 30.0, False))
    assert config.dynamic_timeout == DynamicTimeout(enable=False, ratio=3.0, warmup_min_steps=1)
    assert Scheduler(config).default_timeout == 1800.0 * 3
    sync = ("schedule", "discard_completed_results", "has_step", "dynamic_timeout", "get_all_state")
    assert not any(inspect.iscoroutinefunction(getattr(Scheduler, name)) for name in sync)


async def test_statuses_carry_ids_runs_and_metrics(scheduler):
    tasks = [Task("batch_deeds:score", repeat_times=3), Task("deeds:fail", id="bad", retries=0)]
    scheduler.schedule(tasks, batch_id=1)
    assert scheduler.has_step(1)
    statuses = {status.task_id: status for status in await within(20, scheduler.get_statuses(1))}
    good, bad = statuses["0"], statuses["bad"]
    assert (good.completed_runs, good.total_runs, good.ok, good.message) == (3, 3, True, "")
    assert good.metrics == [{"score": 1.0, "time/run_execution": pytest.approx(0, abs=1)}]
    assert (bad.completed_runs, bad.total_runs, bad.ok, bad.metrics) == (0, 1, False, [{}])
    assert "run 0 failed: ValueError: bad luck" in bad.message
    assert not scheduler.has_step(1)


async def test_payloads_come_back_as_they_were_given(scheduler):
    secret = object()
    tasks = [
        Task(lambda context: TaskResult(payload=bytes([context.run_id, 255])), id="bytes", repeat_times=2),
        Task(lambda: None, id="none"),
        Task(lambda thing: TaskResult(payload=type(thing).__name__.encode()), {"thing": {secret}}, id="args"),
    ]
    scheduler.schedule(tasks, "pickled")
    statuses, payloads = await within(20, scheduler.get_payload_results("pickled"))
    assert all(status.ok for status in statuses)
    assert sorted(payloads) == [b"\x00\xff", b"\x01\xff", b"set"]


async def test_async_callables_are_awaited(scheduler):
    async def later(value):
        await asyncio.sleep(0)
        return TaskResult(payload=value)

    scheduler.schedule([Task(later, {"value": b"x"}), Task("deeds:AsyncWork", id="arun")], 1)
    statuses, payloads = await within(20, scheduler.get_payload_results(1))
    assert ([status.ok for status in statuses], payloads) == ([True, True], [b"x"])


async def test_the_context_of_a_task(scheduler):
    before = time.time()
    scheduler.schedule([Task("batch_deeds:tell_all", id="t", repeat_times=2, timeout=9)], "7/name")
    _, payloads = await within(20, scheduler.get_payload_results("7/name"))
    batch, task, run, attempt, deadline, model, is_eval, folder = json.loads(payloads[1])
    assert (batch, task, run, attempt, is_eval) == ("7/name", "t", 1, 1, False)
    assert before + 8 < deadline < time.time() + 9
    assert model in ({"rollout": name, "auxiliary": ["judge"]} for name in ("m0", "m1"))
    assert folder
    assert 7 in scheduler.get_key_state("model_version").values()
    assert 1 in scheduler.get_key_state("step").values()
    scheduler.schedule([Task(tell_whether_eval, is_eval=True)], "7/ev")
    await within(20, scheduler.get_statuses("7/ev"))
    assert list(scheduler.get_key_state("is_eval").values()) == [True]


def tell_whether_eval(context):
    context.tell(is_eval=context.is_eval)


async def test_runners_are_models_times_runner_per_model_and_runner_i_has_model_i_mod_their_number(
    scheduler, gate
):
    assert scheduler.runner_num == 4
    tasks = [Task("batch_deeds:tell_all", repeat_times=1) for _ in range(4)]
    found = await asyncio.gather(
        *(scheduler.runners[i].run_with_retry(task, 1, 0, 9.0) for i, task in enumerate(tasks))
    )
    assert [json.loads(payload)[5]["rollout"] for _, payload, _, _ in found] == ["m0", "m1", "m0", "m1"]


async def test_repeats_are_split_and_run_ids_count_on(scheduler, gate):
    """R = 5, m = 2: (base, n) = (0, 2), (2, 2), (4, 1)."""
    configured(scheduler, max_repeat_times_per_runner=2)
    scheduler.schedule([visitor(gate, id="t", repeat_times=5)], 1)
    visits = await gate.visits(3)
    assert {run for _, run in visits} == {0, 2, 4}, "three sub-tasks at once"
    wrapper = scheduler._batches[1].tasks["t"]
    assert (wrapper.sub_task_num, wrapper.finished_sub_task_num, wrapper.emitted) == (3, 0, False)
    for visit in visits.values():
        visit.tell("go")
    later = await gate.visits(2)
    assert {run for _, run in later} == {1, 3}
    for visit in later.values():
        visit.tell("go")
    (status,), payloads = await within(20, scheduler.get_payload_results(1))
    assert sorted(payloads) == [f"t/{run}".encode() for run in range(5)]
    assert (wrapper.sub_task_num, wrapper.finished_sub_task_num, wrapper.emitted) == (3, 3, True)
    assert (wrapper.completed_runs, wrapper.total_runs, wrapper.first_error) == (5, 5, None)
    assert status.metrics[0]["run"] == 2.0


async def test_only_missing_runs_are_retried(scheduler, tmp_path):
    args = {"folder": str(tmp_path), "times": 1}
    scheduler.schedule([Task("batch_deeds:fail_first", args, repeat_times=3)], 1)
    (status,) = await within(20, scheduler.get_statuses(1))
    assert status.ok
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-1", "1-1", "1-2", "2-1"]


async def test_max_retry_times_counts_attempts_after_the_first(scheduler, tmp_path):
    configured(scheduler, max_retry_times=2)
    args = {"folder": str(tmp_path), "times": 99}
    scheduler.schedule([Task("batch_deeds:fail_first", args, repeat_times=2)], 1)
    (status,) = await within(20, scheduler.get_statuses(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-1", "1-1", "1-2", "1-3"]
    assert (status.completed_runs, status.total_runs) == (1, 2)
    assert "attempt 3" in status.message


async def test_a_batch_may_be_scheduled_in_portions(scheduler):
    scheduler.schedule([Task("deeds:nothing")], 1)
    scheduler.schedule([Task("deeds:nothing"), Task("deeds:nothing", id="x")], 1)
    statuses = await within(20, scheduler.get_statuses(1))
    assert sorted(status.task_id for status in statuses) == ["0", "1", "x"]


async def test_what_cannot_be_scheduled_changes_nothing(scheduler, gate):
    scheduler.schedule([visitor(gate, id="a")], 1)
    visit = await gate.visit()
    before = (dict(scheduler._batches[1].tasks), scheduler._batches[1].scheduled)
    with pytest.raises(ValueError, match="ids already: a"):
        scheduler.schedule([Task("deeds:nothing", id="b"), Task("deeds:nothing", id="a")], 1)
    with pytest.raises(GraphError, match='"b"'):
        scheduler.schedule([Task("deeds:nothing", id="b"), Task("deeds:nothing", id="b")], 1)
    with pytest.raises(GraphError, match="nobody"):
        scheduler.schedule([Task("deeds:nothing", id="c", depends_on=["nobody"])], 2)
    with pytest.raises(TypeError, match="cannot be sent"):
        scheduler.schedule([Task("deeds:nothing", {"lock": threading.Lock()})], 2)
    with pytest.raises(ValueError, match="repeat_times"):
        scheduler.schedule([Task("deeds:nothing", repeat_times=0)], 2)
    with pytest.raises(TypeError, match=r"must be a governor\.tasks\.Task, not builtins\.dict"):
        scheduler.schedule([{"workflow": None}], 2)
    assert (scheduler._batches[1].tasks, scheduler._batches[1].scheduled) == before
    assert not scheduler.has_step(2)
    visit.tell("go")
    (status,) = await within(20, scheduler.get_statuses(1))
    assert status.ok


async def test_values_of_equal_task_ids_in_two_batches_do_not_mix(scheduler):
    """Values that do not travel lie in files: each batch has its own."""
    for fill in (1, 2, 3):
        tasks = [
            Task("batch_deeds:matrix", {"fill": fill}, id="matrix"),
            Task("batch_deeds:total", id="total", depends_on=["matrix"]),
        ]
        scheduler.schedule(tasks, fill)
    for fill in (1, 2, 3):
        statuses = await within(20, scheduler.get_statuses(fill))
        totals = [status.metrics[0]["total"] for status in statuses if status.task_id == "total"]
        assert totals == [3.0 * fill]


# -- order ----------------------------------------------------------------------------------------------------


async def test_train_goes_before_eval_of_the_same_step_and_names_come_last(scheduler, gate):
    batches = ["other", "3/eval", 3, "1/eval", 1]
    assert sorted(batches, key=sort_batch_id) == [1, "1/eval", 3, "3/eval", "other"]
    for index in range(4):
        scheduler.schedule([visitor(gate, id=f"busy-{index}")], 0)
    busy = await gate.visits(4)
    for batch_id in batches:
        scheduler.schedule([visitor(gate, id=str(batch_id))], batch_id)
    order = []
    visit = busy.pop(("busy-0", 0))
    for _ in batches:
        visit.tell("go")
        visit = await gate.visit()
        order.append(visit.task)
    for left in (visit, *busy.values()):
        left.tell("go")
    assert order == ["1", "1/eval", "3", "3/eval", "other"]
    await within(20, scheduler.wait_all())
    for batch_id in [0, *batches]:
        scheduler.discard_completed_results(batch_id)


# -- states, explain -----------------------------------------------------------------------------------


async def test_states_of_runners(scheduler, gate, capsys):
    scheduler.schedule([visitor(gate, id="t", repeat_times=2)], "3/name")
    visit = await gate.visit()
    (running,) = scheduler.running_tasks("3/name")
    assert isinstance(running, RunningTaskState)
    assert isinstance(running.task, TaskWrapper)
    assert (running.task.task_id, running.restart_runner_on_cancel) == ("t", True)
    state = scheduler.get_runner_state(running.runner_id)
    assert state["workflow_id"] == "3/name/t/0"
    assert 0 < time.time() - state["begin_time"] < 10
    assert (state["terminate_time"], state["running_time"] > 0) == (None, True)
    assert scheduler.get_key_state("workflow_id")[running.runner_id] == "3/name/t/0"
    assert scheduler.get_all_state()[running.runner_id]["workflow_id"] == "3/name/t/0"
    scheduler.print_all_state()
    assert "3/name/t/0" in capsys.readouterr().out
    visit.tell("go")
    (await gate.visit()).tell("go")
    assert (await within(5, scheduler.get_statuses("3/name")))[0].ok
    state = scheduler.get_runner_state(running.runner_id)
    assert state["workflow_id"] == "3/name/t/1"
    assert state["terminate_time"] - state["begin_time"] == pytest.approx(state["running_time"], abs=0.001)
    assert scheduler.get_runner_state(99) == {}


async def test_a_task_is_not_at_work_on_a_runner_that_has_done_its_part(scheduler, gate, monkeypatch):
    configured(scheduler, max_repeat_times_per_runner=1)
    scheduler.schedule([visitor(gate, id="t", repeat_times=2)], 1)
    visits = await gate.visits(2)
    assert len(scheduler.running_tasks(1)) == 2
    view, ended = scheduler._batches[1], asyncio.Event()
    run_ended = view.run_ended
    monkeypatch.setattr(view, "run_ended", lambda *said: (run_ended(*said), ended.set()))
    visits["t", 0].tell("go")
    await within(5, ended.wait())
    assert len(scheduler.running_tasks(1)) == 1
    visits["t", 1].tell("go")
    assert (await within(5, scheduler.get_statuses(1)))[0].ok


async def test_explain_says_what_a_batch_waits_for(scheduler, gate):
    tasks = [visitor(gate, id=f"t{index}", timeout=15.0) for index in range(5)]
    scheduler.schedule([*tasks, Task("deeds:nothing", id="end", depends_on=["t0"])], 1)
    visits = await gate.visits(4)
    rows = {row.task: row for row in scheduler.explain(1)}
    (queued,) = {f"t{index}" for index in range(5)} - {task for task, _ in visits}
    running = rows[next(iter(visits))[0]]
    assert (running.state, running.runs, running.attempt) == ("running", (0,), 1)
    assert running.slot_index in range(4)
    assert running.until - running.since == pytest.approx(15.0)
    assert running.since <= time.monotonic()
    assert (rows[queued].state, rows["end"].state) == ("queued", "blocked")
    assert "t0" in rows["end"].why
    await within(5, scheduler.abort_batch(1))


async def test_dynamic_timeout_learns_from_train_tasks_alone(scheduler):
    scheduler._timeout_estimator = type(scheduler._timeout_estimator)(
        DynamicTimeout(enable=True, ratio=3.0, warmup_min_steps=1), BASE.max_timeout
    )
    try:
        assert (scheduler.dynamic_timeout(), scheduler.dynamic_timeout(7.0)) == (40.0, 7.0)
        scheduler.schedule([Task("deeds:sleep", {"seconds": 0.3}, is_eval=True)], "1/eval")
        await within(20, scheduler.get_statuses("1/eval"))
        assert scheduler.dynamic_timeout(7.0) == 7.0
        scheduler.schedule([Task("deeds:sleep", {"seconds": seconds}) for seconds in (0.1, 0.3)], 1)
        await within(20, scheduler.get_statuses(1))
        assert scheduler.dynamic_timeout() == scheduler.dynamic_timeout(7.0)
        assert 3 * 0.2 <= scheduler.dynamic_timeout() < 3 * 0.2 + 0.5
        assert scheduler.dynamic_timeout(0.5) == 0.5
    finally:
        scheduler._timeout_estimator = type(scheduler._timeout_estimator)(DynamicTimeout(), BASE.max_timeout)


async def test_a_full_queue_refuses_the_whole_batch(scheduler, gate, monkeypatch):
    monkeypatch.setattr(scheduler.engine, "_max_pending", 3)
    scheduler.schedule([visitor(gate, id="a", repeat_times=2)], 1)
    with pytest.raises(QueueFull, match="2 runs are pending and 2 more would exceed max_pending=3"):
        scheduler.schedule([Task("deeds:nothing"), Task("deeds:nothing")], 2)
    assert not scheduler.has_step(2)
    scheduler.schedule([Task("deeds:nothing")], 2)
    assert (await within(20, scheduler.get_statuses(2)))[0].ok
    await within(5, scheduler.abort_batch(1))


async def test_a_status_is_ok_when_all_runs_are_completed():
    assert Status(2, 2).ok
    assert not Status(1, 2).ok
    assert (Status(1, 2).metrics, Status(1, 2).message) == ([], "")
