"""The known faults of the scheduler whose users ours is made for: each test fails on the behaviour that it names."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time

import pytest

from governor.tasks import Task
from tests.support.living import lives
from tests.support.tasks.scheduling import BASE, configured, turns, visitor, within

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


def runners(scheduler):
    """Numbers of all runners that live, or are on their way."""
    return {slot.runner for slot in scheduler.engine._core.slots.all()}


def pid_of(scheduler, slot_index):
    return scheduler.engine._runners.pid(scheduler.engine._core.slots.at_index(slot_index).runner)


# -- batches that are refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "batch", "message"),
    [
        ({"args": 5}, 7, "task '0': args must be a dict, not 5"),
        ({"resources": 5}, 7, "task '0': resources must be a dict, not 5"),
        ({"priority": "x"}, 7, "priority must be a whole number"),
        ({}, True, "a batch id must be an int or a str, not bool"),
    ],
)
async def test_what_is_refused_leaves_no_batch_behind(scheduler, fields, batch, message):
    with pytest.raises(TypeError, match=message):
        scheduler.schedule([Task("visits:visit", **{"id": "0", **fields})], batch)
    assert not scheduler.has_step(batch)


async def test_another_thread_is_told_how_to_schedule(scheduler, gate):
    with pytest.raises(RuntimeError, match=r"loop\.call_soon_threadsafe\(scheduler\.schedule"):
        await asyncio.to_thread(scheduler.schedule, [visitor(gate, id="a")], 7)

    async def schedule():
        scheduler.schedule([visitor(gate, id="a")], 7)

    with pytest.raises(RuntimeError, match="event loop of their scheduler"):
        await asyncio.to_thread(lambda: asyncio.run(schedule()))
    assert not scheduler.has_step(7)
    scheduler.schedule([visitor(gate, id="a")], 7)
    (await gate.visits(1))["a", 0].tell("go")
    assert [status.ok for status in await scheduler.get_statuses(7)] == [True]


# -- results --------------------------------------------------------------------------------------------------


@pytest.fixture
def results_hang(monkeypatch):
    """Starts a caller, and gives its task when the results that it is to get are being made; they never are."""
    over = threading.Event()

    async def caller_of(work):
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def never(*_):
            loop.call_soon_threadsafe(begun.set)
            over.wait()

        with monkeypatch.context() as patch:
            patch.setattr("governor.tasks.trinity.batches.results_of", never)
            calling = asyncio.create_task(work)
            await begun.wait()
        return calling

    yield caller_of
    over.set()


async def test_a_caller_that_is_cancelled_loses_no_finished_result(scheduler, gate, results_hang):
    scheduler.schedule([visitor(gate, id=name) for name in "ab"], 1)
    visits = await gate.visits(2)
    waiting = asyncio.create_task(scheduler.get_statuses(1))
    visits["a", 0].tell("go")
    await scheduler.wait_for(1, min_num=1, clear_timeout_tasks=False)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    visits["b", 0].tell("go")
    await scheduler.wait_for(1)

    handing_out = await results_hang(scheduler.get_statuses(1))
    handing_out.cancel()
    await asyncio.gather(handing_out, return_exceptions=True)
    assert {status.task_id for status in await within(1, scheduler.get_statuses(1))} == {"a", "b"}


@pytest.mark.parametrize("deed", ["drain", "discard", "abort", "schedule", "peek"])
async def test_what_others_do_meanwhile_loses_no_result_of_a_caller_that_is_cancelled(
    scheduler, results_hang, deed
):
    scheduler.schedule([Task("batch_deeds:score", id=str(number)) for number in range(5)], 1)
    await within(20, scheduler.wait_for(1))
    handing_out = await results_hang(scheduler.drain_batch_payload_results(1))
    assert scheduler.has_step(1)
    match deed:
        case "drain":
            assert await scheduler.drain_batch_payload_results(1) == ([], [])
        case "discard":
            scheduler.discard_completed_results(1)
        case "abort":
            await scheduler.abort_batch(1)
        case "schedule":
            with pytest.raises(ValueError, match="ids already: 3"):
                scheduler.schedule([Task("batch_deeds:score", id="3")], 1)
            scheduler.schedule([Task("batch_deeds:score", id="more")], 1)
        case "peek":
            assert await scheduler.peek_results(1) == []
    handing_out.cancel()
    await asyncio.gather(handing_out, return_exceptions=True)
    found = {status.task_id for status in await within(20, scheduler.get_statuses(1))}
    assert found - {"more"} == {"0", "1", "2", "3", "4"}


async def test_a_result_is_handed_out_once_to_callers_at_the_same_time(scheduler):
    scheduler.schedule([Task("batch_deeds:score") for _ in range(20)], 1)
    found = await within(20, asyncio.gather(*(scheduler.get_payload_results(1) for _ in range(3))))
    ids = [status.task_id for statuses, _ in found for status in statuses]
    assert sorted(ids, key=int) == [str(number) for number in range(20)]
    assert sum(len(payloads) for _, payloads in found) == 20


async def test_failures_alone_never_satisfy_min_num(scheduler, gate):
    scheduler.schedule([visitor(gate, id=name) for name in "abc"], 1)
    scheduler.schedule([visitor(gate, id="d")], 2)
    first = await gate.visits(2)
    waiting = asyncio.create_task(scheduler.get_statuses(1, min_num=1))
    for visit in first.values():
        visit.tell("fail")
    second = await gate.visits(2)  # both runners are free again: both failures are known
    await turns()
    assert not waiting.done(), "two have failed, and one success was asked for"
    second["c", 0].tell("go")
    assert [status.ok for status in await within(5, waiting)] == [False, False, True]
    second["d", 0].tell("go")
    await within(5, scheduler.get_statuses(2))


@pytest.mark.parametrize("order", ["tasks", "ended"])
async def test_statuses_are_those_of_their_tasks_whichever_ended_first(scheduler, gate, order):
    """Also of a batch that is scheduled in portions, and of what is left for a later call."""
    for portion in (2, 1):
        scheduler.schedule([visitor(gate)] * portion, 1)
    visits = await gate.visits(2)
    visits["1", 0].tell("fail")
    visits["2", 0] = await gate.visit()
    visits["2", 0].tell("go")
    await visits["2", 0].gone()
    await scheduler.wait_for(1, min_num=1, clear_timeout_tasks=False)
    if order == "tasks":
        first = [(result.task_id, result.status.ok) for result in await scheduler.peek_results(1)]
        assert first == [("1", False), ("2", True)]
    visits["0", 0].tell("go")
    statuses, payloads = await within(5, scheduler.get_payload_results(1, order=order))
    names = ["0", "1", "2"] if order == "tasks" else ["1", "2", "0"]
    assert [(status.task_id, status.ok) for status in statuses] == [(each, each != "1") for each in names]
    assert payloads == [f"{each}/0".encode() for each in names if each != "1"]


async def test_an_order_that_is_none_is_refused_before_the_wait(scheduler, gate):
    scheduler.schedule([visitor(gate)], 1)
    await gate.visit()
    for method in (
        scheduler.get_statuses,
        scheduler.get_payload_results,
        scheduler.drain_batch_payload_results,
    ):
        with pytest.raises(ValueError, match="order must be 'tasks' or 'ended', not 'id'"):
            await within(1, method(1, order="id"))
    await within(5, scheduler.abort_batch(1))


async def test_runs_of_a_task_are_in_their_order_whichever_ended_first(scheduler, gate):
    configured(scheduler, max_repeat_times_per_runner=1)
    scheduler.schedule([visitor(gate, id="t", repeat_times=3)], 1)
    visits = await gate.visits(2)
    task = scheduler._batches[1].tasks["t"]
    visits["t", 1].tell("go")
    visits["t", 2] = await gate.visit()
    for run in (2, 0):
        visits["t", run].tell("go")
        await visits["t", run].gone()
    _, payloads = await within(5, scheduler.get_payload_results(1))
    assert payloads == [b"t/0", b"t/1", b"t/2"]
    assert [metrics["run"] for metrics in task.metrics] == [0, 1, 2]


async def test_abort_wakes_who_waits_for_the_batch(scheduler, gate):
    scheduler.schedule([visitor(gate)], 1)
    await gate.visit()
    waiting = asyncio.create_task(scheduler.get_statuses(1, timeout=600))
    await turns()
    await within(5, scheduler.abort_batch(1))
    assert await within(0.5, waiting) == []


async def test_an_aborted_batch_does_not_wait_for_what_is_scheduled_meanwhile(scheduler, gate):
    scheduler.schedule([visitor(gate, id="old", repeat_times=2)], 1)
    (await gate.visit()).tell("go")
    await gate.visit()
    aborting = asyncio.create_task(scheduler.abort_batch(1, return_partial_tasks=True))
    await asyncio.sleep(0)
    scheduler.schedule([visitor(gate, id="new")], 1)
    await within(5, aborting)
    statuses, _ = await scheduler.drain_batch_payload_results(1)
    assert [(status.task_id, status.completed_runs) for status in statuses] == [("old", 1)]
    (await gate.visit()).tell("go")
    assert [status.task_id for status in await within(5, scheduler.get_statuses(1))] == ["new"]


# -- runners --------------------------------------------------------------------------------------------------


async def test_a_crashed_runner_is_not_put_back_as_idle_and_eats_no_other_task(scheduler, gate):
    scheduler.schedule([visitor(gate, id=str(index)) for index in range(4)], 1)
    visits = await gate.visits(2)
    for visit in visits.values():
        visit.tell("die")
    others = await gate.visits(2)
    for visit in others.values():
        visit.tell("go")
    statuses = {status.task_id: status for status in await within(20, scheduler.get_statuses(1))}
    for task, _ in visits:
        assert "crashed" in statuses[task].message
        assert "os._exit(3)" in statuses[task].message
    assert all(statuses[task].ok and visit.attempt == 1 for (task, _), visit in others.items())


async def test_a_runner_that_dies_idle_is_replaced_and_costs_no_attempt(scheduler, gate):
    wrapper = scheduler.runners[0]
    await within(20, wrapper.prepare())
    os.kill(pid_of(scheduler, 0), signal.SIGKILL)
    scheduler.schedule([visitor(gate, id=str(index)) for index in range(2)], 1)
    for visit in (await gate.visits(2)).values():
        assert visit.attempt == 1
        visit.tell("go")
    assert all(status.ok for status in await within(20, scheduler.get_statuses(1)))


async def test_an_attempt_past_its_deadline_is_dead_before_its_retry_begins(scheduler, gate):
    scheduler.schedule([visitor(gate, args={"stubborn": True}, retries=1, timeout=0.3)], 1)
    first = await gate.visit()
    second = await gate.visit()
    assert (first.attempt, second.attempt) == (1, 2)
    assert not lives(first.pid)
    second.tell("go")
    assert (await within(5, scheduler.get_statuses(1)))[0].ok


async def test_a_hung_runner_freezes_no_report_of_states(scheduler, gate, capsys):
    scheduler.schedule([visitor(gate, id="hung")], 1)
    visit = await gate.visit()
    visit.tell("hold the GIL")
    assert await visit.heard() == b"held\n"
    began = time.monotonic()
    (state,) = [state for state in scheduler.get_all_state().values() if state["terminate_time"] is None]
    scheduler.print_all_state()
    for runner in range(scheduler.runner_num):
        await scheduler.runners[runner].update_state()
    assert scheduler.get_key_state("workflow_id")
    (row,) = scheduler.explain(1)
    assert time.monotonic() - began < 5
    assert state["workflow_id"] == "1/hung/0"
    assert "1/hung/0" in capsys.readouterr().out
    assert row.state == "running"
    await within(5, scheduler.abort_batch(1))
    await within(1, visit.gone())


async def test_a_failed_restart_leaks_no_runner(scheduler, monkeypatch):
    for runner in range(2):
        await within(20, scheduler.runners[runner].prepare())
    pool, old = scheduler.engine._runners, pid_of(scheduler, 0)
    create, failures = pool._create, iter([True])

    def create_or_fail(member):
        if next(failures, False):
            raise RuntimeError("no licence")
        return create(member)

    monkeypatch.setattr(pool, "_create", create_or_fail)
    await within(20, scheduler.runners[0].restart_runner())
    assert not lives(old)
    for runner in range(2):
        await within(20, scheduler.runners[runner].prepare())
    assert len(runners(scheduler)) == len(pool._handles) == 2
    scheduler.schedule([Task("deeds:nothing") for _ in range(4)], 1)
    assert all(status.ok for status in await within(20, scheduler.get_statuses(1)))


# -- time -----------------------------------------------------------------------------------------------------


async def test_nobody_polls(scheduler, gate, monkeypatch):
    """While a task is at work, a wait sets no timer after the other: looks every 10 or 100 ms would be 100 or 10."""
    scheduler.schedule([visitor(gate, id=name) for name in "ab"], 1)
    visits = await gate.visits(2)
    loop = asyncio.get_running_loop()
    timers = []
    call_at = loop.call_at

    def counted(when, *arguments, **more):
        timers.append(when)
        return call_at(when, *arguments, **more)

    waits = [asyncio.create_task(scheduler.get_statuses(1)), asyncio.create_task(scheduler.wait_all())]
    await turns()
    monkeypatch.setattr(loop, "call_at", counted)
    await asyncio.sleep(1.0)  # not waited for anything: the time in which nothing is to happen
    monkeypatch.undo()
    assert len(timers) < 6
    for visit in visits.values():
        visit.tell("go")
    await within(5, asyncio.gather(*waits))


async def test_early_batches_do_not_starve_late_ones(scheduler, gate, monkeypatch):
    """Who has waited for `max_timeout` seconds is overtaken by nobody."""
    assert scheduler.engine._core.ready._age == BASE.max_timeout
    monkeypatch.setattr(scheduler.engine._core.ready, "_age", 0.0)
    scheduler.schedule([visitor(gate, id=f"busy-{index}") for index in range(2)], 0)
    busy = await gate.visits(2)
    scheduler.schedule([visitor(gate, id="late")], 9)
    scheduler.schedule([visitor(gate, id="early")], 1)
    busy.pop(("busy-0", 0)).tell("go")
    visit = await gate.visit()
    assert visit.task == "late"
    for left in (visit, *busy.values(), await gate.visit()) if not visit.tell("go") else ():
        left.tell("go")
    await within(5, scheduler.wait_all())
    for batch_id in (0, 1, 9):
        scheduler.discard_completed_results(batch_id)


async def test_the_deadline_of_one_task_is_not_that_of_its_siblings(scheduler, gate):
    scheduler.schedule([visitor(gate, id="short", timeout=0.2), visitor(gate, id="long")], 1)
    visits = await gate.visits(2)
    await within(5, visits["short", 0].gone())
    visits["long", 0].tell("go")
    statuses = {status.task_id: status for status in await within(5, scheduler.get_statuses(1))}
    assert statuses["long"].ok
    assert "timed_out: ran longer than its timeout of 0.2 s" in statuses["short"].message


@pytest.mark.parametrize(("seconds", "attempts"), [(None, 2), (0.3, 3)])
async def test_no_task_outlives_its_bound(scheduler, gate, seconds, attempts):
    """``max_timeout * (max_retry_times + 1)``, however many retries it asks for; an attempt is cut short for it."""
    configured(scheduler, max_timeout=0.4, max_retry_times=1)
    scheduler.schedule([visitor(gate, retries=10, timeout=seconds)], 1)
    for attempt in range(1, attempts + 1):
        visit = await gate.visit()
        assert visit.attempt == attempt
    (status,) = await within(20, scheduler.get_statuses(1, timeout=20))
    assert "timed_out" in status.message
    assert gate.arrivals.empty()


async def test_attempts_that_fail_at_once_are_as_many_as_the_task_asks_for(scheduler, tmp_path):
    configured(scheduler, max_timeout=5.0, max_retry_times=0)
    args = {"folder": str(tmp_path), "times": 4}
    scheduler.schedule([Task("batch_deeds:fail_first", args, repeat_times=2, retries=4)], 1)
    assert (await within(20, scheduler.get_statuses(1)))[0].ok


async def test_a_large_evaluation_does_not_hold_the_event_loop(scheduler):
    """2,200 tasks of 16 runs. What the loop's thread itself works at a stretch counts, as a share of the whole work."""
    scheduler.schedule(
        [Task("batch_deeds:score", repeat_times=16, is_eval=True) for _ in range(2_200)], "1/large"
    )
    await within(60, scheduler.wait_for("1/large"))
    gc.collect()
    gc.freeze()  # the garbage collector's walks over all that other tests have left are not counted
    worst, began = 0.0, time.process_time()
    handing_out = asyncio.create_task(scheduler.get_payload_results("1/large"))
    while not handing_out.done():
        before = time.thread_time()
        await asyncio.sleep(0)
        worst = max(worst, time.thread_time() - before)
    whole = time.process_time() - began
    gc.unfreeze()
    statuses, payloads = handing_out.result()
    assert (len(statuses), payloads) == (2_200, [])
    assert worst < whole / 20  # 1/100 on a quiet machine; nearly all of it, if the loop's thread did it
