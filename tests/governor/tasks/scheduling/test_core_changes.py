"""A task of a batch is cancelled, or done again, while the others go on."""

from __future__ import annotations

import pytest

from governor.tasks.scheduling.events import (
    AttemptClosed,
    AttemptEnded,
    BatchEnded,
    CancelAttempt,
    Dispatch,
    KillRunner,
    TaskChanged,
)
from tests.support.tasks.core_world import Driver, task


def outcomes(driver):
    return {name: record.outcome for (name, _), record in driver.records().items()}


def test_a_cancelled_task_ends_with_what_depends_on_it_and_the_others_go_on():
    driver = Driver(task("a"), task("b"), task("c", "b"), task("d", "c"), task("e", "a"), slots=1)
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    driver.change("b", 1.0)
    assert outcomes(driver) == {"b": "cancelled", "c": "upstream_failed", "d": "upstream_failed"}
    assert driver.records()["b", 0].error == "by hand"
    [after] = driver.of(Dispatch, driver.end(sent, 2.0))
    assert after.attempts[0].task.id == "e"
    assert driver.do(after, 3.0)[-1] == BatchEnded("b", "tasks_done", 1, 'task "b" run 0 cancelled: by hand')


def test_the_attempt_of_a_cancelled_task_has_its_grace_and_is_not_retried():
    driver = Driver(task("a", retries=3), slots=1, grace=2.0)
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    driver.change("a", 1.0)
    driver.change("a", 1.5)
    assert not driver.of(KillRunner, driver.tick(2.9))
    assert driver.of(KillRunner, driver.tick(3.0))
    driver.gone(0, 3.1)
    assert outcomes(driver) == {"a": "cancelled"}
    assert not driver.of(AttemptEnded)


def test_a_task_that_has_ended_or_is_unknown_stays_as_it_is():
    driver = Driver(task("a"), task("b"), slots=1)
    sent = driver.ready(0)
    [after] = driver.of(Dispatch, driver.do(sent, 1.0))
    assert driver.change("a", 2.0) == []
    assert driver.change("z", 2.0) == []
    assert driver.change("a", 2.0, again=True) == []
    driver.do(after, 3.0)
    assert outcomes(driver) == {"a": "succeeded", "b": "succeeded"}


def test_a_blocked_task_that_was_cancelled_in_a_pause_is_never_dispatched():
    driver = Driver(task("a"), task("b", "a"), slots=1)
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    driver.core.is_paused = True
    driver.change("b", 1.0)
    driver.end(sent, 2.0)
    driver.core.is_paused = False
    driver.tick(3.0)
    assert not driver.of(Dispatch, driver.effects[2:])
    assert outcomes(driver) == {"a": "succeeded", "b": "cancelled"}


def test_what_runs_of_a_task_is_done_again_beyond_its_retries():
    driver = Driver(task("a", retries=0), slots=1)
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    assert driver.of(KillRunner, driver.change("a", 5.0, again=True))
    driver.gone(0, 5.1)
    [ended] = driver.of(AttemptEnded)
    assert (ended.attempt.number, ended.outcome, ended.error) == (1, "cancelled", "by hand")
    again = driver.ready(1, 6.0)
    assert again.attempts[0].number == 2
    driver.begin(again, 6.0)
    driver.end(again, 7.0, error="it is bad")
    assert driver.records()["a", 0].outcome == "failed"  # the grant was for one attempt


def test_what_is_cancelled_while_it_ends_to_be_done_again_has_the_later_reason():
    driver = Driver(task("a"), slots=1, grace=2.0)
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    driver.change("a", 1.0, again=True)
    driver.on(TaskChanged(1.5, "b", "a", "for good"))
    driver.tick(3.0)
    driver.gone(0, 3.1)
    assert driver.records()["a", 0].outcome == "cancelled"
    assert driver.records()["a", 0].error == "for good"


@pytest.mark.parametrize("run", [None, 0])
def test_what_is_cancelled_while_it_times_out_to_be_tried_again_is_cancelled(run):
    driver = Driver(task("a", repeat=2, retries=1, timeout=1.0), slots=1, batch={"split": 1}, grace=2.0)
    driver.begin(driver.ready(0), 0.0)
    assert driver.of(CancelAttempt, driver.tick(1.0))
    driver.change("a", 1.5, run=run)
    driver.tick(3.0)
    driver.gone(0, 3.1)
    ended = driver.records()["a", 0]
    assert (ended.outcome, ended.error, ended.attempts) == ("cancelled", "by hand", 1)
    assert ("a", 1) not in driver.records() or run is None


def test_what_is_cancelled_while_it_times_out_for_good_has_timed_out():
    driver = Driver(task("a", timeout=1.0), slots=1, grace=2.0)
    driver.begin(driver.ready(0), 0.0)
    driver.tick(1.0)
    driver.change("a", 1.5)
    driver.tick(3.0)
    driver.gone(0, 3.1)
    assert outcomes(driver) == {"a": "timed_out"}


def test_what_times_out_for_good_is_done_again():
    driver = Driver(task("a", timeout=1.0), slots=1, grace=2.0)
    driver.begin(driver.ready(0), 0.0)
    driver.tick(1.0)
    driver.change("a", 1.5, again=True)
    driver.tick(3.0)
    driver.gone(0, 3.1)
    [ended] = driver.of(AttemptEnded)
    assert (ended.attempt.number, ended.outcome) == (1, "timed_out")
    driver.do(driver.ready(1, 4.0), 4.5)
    assert driver.records()["a", 0].outcome == "succeeded"


def test_nothing_is_closed_of_a_cancelled_run_that_has_succeeded():
    driver = Driver(task("a"), slots=1, grace=2.0)
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    driver.change("a", 1.0)
    driver.end(sent, 1.5)
    assert outcomes(driver) == {"a": "succeeded"}
    assert not driver.of(AttemptClosed)


def test_a_grant_takes_no_retry_away():
    driver = Driver(task("a", retries=1), slots=1)
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    driver.change("a", 1.0, again=True)
    driver.gone(0, 1.1)
    second = driver.ready(1, 2.0)
    [third] = driver.of(Dispatch, driver.do(second, 3.0, error="it is bad"))
    assert third.attempts[0].number == 3
    driver.do(third, 4.0, error="it is bad")
    assert driver.records()["a", 0].outcome == "failed"


def test_a_task_that_does_not_run_is_not_done_again():
    driver = Driver(task("a"), task("b"), slots=1)
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    assert driver.change("b", 1.0, again=True) == []
    driver.end(sent, 2.0)
    assert driver.core.batches["b"].left == 1


def runs(driver):
    return {(name, run): record.outcome for (name, run), record in driver.records().items()}


def test_one_run_of_a_task_is_cancelled_where_it_waits_and_the_others_go_on():
    driver = Driver(task("a", repeat=4), task("b", "a"), slots=1, batch={"split": 1})
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    driver.change("a", 1.0, run=2)
    driver.change("a", 1.5, run=2)
    assert runs(driver) == {("a", 2): "cancelled", ("b", 0): "upstream_failed"}
    for at in (2.0, 3.0, 4.0):
        more = driver.of(Dispatch, driver.do(sent, at))
        sent = more[0] if more else None
    assert sent is None
    assert [run for (_, run), outcome in runs(driver).items() if outcome == "succeeded"] == [0, 1, 3]
    assert driver.of(BatchEnded) == [BatchEnded("b", "tasks_done", 1, 'task "a" run 2 cancelled: by hand')]


def test_one_run_of_a_task_is_cancelled_at_work_and_not_retried():
    driver = Driver(task("a", repeat=2, retries=3), slots=2, batch={"split": 1})
    first, second = driver.ready(0), driver.ready(1)
    driver.begin(first, 0.0)
    driver.begin(second, 0.0)
    assert driver.of(KillRunner, driver.change("a", 1.0, run=1)) == [KillRunner(1, "by hand", is_idle=False)]
    assert runs(driver) == {}
    driver.gone(1, 1.1)
    assert runs(driver) == {("a", 1): "cancelled"}
    assert driver.records()["a", 1].attempts == 1
    driver.end(first, 2.0)
    assert runs(driver) == {("a", 1): "cancelled", ("a", 0): "succeeded"}


def test_of_two_cancellations_the_first_reason_counts():
    driver = Driver(task("a", repeat=2), slots=1, batch={"split": 1}, grace=2.0)
    driver.begin(driver.ready(0), 0.0)
    driver.change("a", 1.0, run=0)
    driver.on(TaskChanged(1.5, "b", "a", "all of them"))
    driver.tick(3.0)
    driver.gone(0, 3.1)
    assert [record.error for _, record in sorted(driver.records().items())] == ["by hand", "all of them"]


def test_the_queue_has_no_place_left_for_a_run_that_was_cancelled():
    driver = Driver(task("a", repeat=4, retries=1), slots=1, batch={"split": 1})
    sent = driver.ready(0)
    driver.change("a", 0.5, run=2)
    [sent] = driver.of(Dispatch, driver.do(sent, 1.0))
    [last] = driver.of(Dispatch, driver.do(sent, 2.0))
    [again] = driver.of(Dispatch, driver.do(last, 3.0, error="it is bad"))
    assert (again.attempts[0].runs, again.attempts[0].number) == ((3,), 2)
    driver.do(again, 4.0)
    assert runs(driver) == {("a", 2): "cancelled", **{("a", run): "succeeded" for run in (0, 1, 3)}}


def test_one_run_of_a_task_is_done_again():
    driver = Driver(task("a", repeat=2), slots=2, batch={"split": 1})
    first, second = driver.ready(0), driver.ready(1)
    driver.begin(first, 0.0)
    driver.begin(second, 0.0)
    assert driver.of(KillRunner, driver.change("a", 1.0, run=0, again=True)) == [
        KillRunner(0, "by hand", is_idle=False)
    ]
    driver.gone(0, 1.1)
    again = driver.ready(2, 2.0)
    assert (again.attempts[0].runs, again.attempts[0].number) == ((0,), 2)


def test_a_run_that_waits_for_its_retry_is_cancelled():
    driver = Driver(task("a", repeat=2, retries=3), slots=1, batch={"split": 1})
    sent = driver.ready(0)
    [after] = driver.of(Dispatch, driver.do(sent, 1.0, error="it is bad"))
    assert after.attempts[0].runs == (1,)
    driver.change("a", 2.0, run=0)
    assert not driver.of(Dispatch, driver.do(after, 3.0))
    assert runs(driver) == {("a", 0): "cancelled", ("a", 1): "succeeded"}


def test_a_blocked_run_is_cancelled():
    driver = Driver(task("a"), task("b", "a", repeat=2), slots=1, batch={"split": 1})
    sent = driver.ready(0)
    driver.change("b", 0.5, run=0)
    [after] = driver.of(Dispatch, driver.do(sent, 1.0))
    assert (after.attempts[0].task.id, after.attempts[0].runs) == ("b", (1,))
    driver.do(after, 2.0)
    assert runs(driver) == {("b", 0): "cancelled", ("a", 0): "succeeded", ("b", 1): "succeeded"}


@pytest.mark.parametrize("repeat", [1, 2])
def test_a_run_that_a_task_does_not_have_any_more(repeat):
    driver = Driver(task("a", repeat=repeat), slots=1, batch={"split": 1})
    sent = driver.ready(0)
    assert driver.change("a", 1.0, run=3) == []
    for _ in range(repeat):
        sent = next(iter(driver.of(Dispatch, driver.do(sent, 2.0))), None)
    assert runs(driver) == {("a", run): "succeeded" for run in range(repeat)}


def test_a_run_that_a_runner_does_in_a_row_with_others_stays():
    driver = Driver(task("a", repeat=4), slots=1, batch={"split": 2})
    driver.ready(0)
    assert driver.change("a", 1.0, run=3) == []
    assert runs(driver) == {}


def test_a_running_attempt_gets_the_new_time_out_from_its_beginning():
    driver = Driver(task("a", timeout=10.0), slots=1, grace=1.0)
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    driver.change_limits("a", 9.0, timeout=30.0)
    driver.tick(11.0)
    assert outcomes(driver) == {}
    driver.tick(30.0)
    driver.gone(0, 30.5)
    assert driver.records()["a", 0].outcome == "timed_out"
    assert driver.records()["a", 0].error == "ran longer than its timeout of 30 s"


def test_a_time_out_that_has_passed_by_then_ends_the_attempt_at_once_and_none_ends_none():
    driver = Driver(task("a", timeout=None), task("b", timeout=5.0), slots=2, grace=1.0)
    first = driver.ready(0)
    second = driver.ready(1)
    driver.begin(first, 0.0)
    driver.begin(second, 0.0)
    driver.change_limits("b", 1.0, timeout=None)
    driver.change_limits("a", 20.0, timeout=10.0)
    driver.tick(21.0)
    driver.gone(0, 21.5)
    assert outcomes(driver) == {"a": "timed_out"}
    driver.end(second, 1000.0)
    assert outcomes(driver)["b"] == "succeeded"


def test_a_task_that_waits_has_the_new_time_out_when_it_begins():
    driver = Driver(task("a"), task("b", "a", timeout=1.0), slots=1)
    sent = driver.ready(0)
    driver.change_limits("b", 0.0, timeout=50.0)
    [after] = driver.of(Dispatch, driver.do(sent, 1.0))
    assert after.attempts[0].limit == 50.0


def test_retries_count_for_the_attempt_that_runs():
    driver = Driver(task("a", retries=0), slots=1)
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    driver.change_limits("a", 1.0, retries=1)
    [again] = driver.of(Dispatch, driver.end(sent, 2.0, error="it is bad"))
    assert again.attempts[0].number == 2
    driver.do(again, 3.0, error="it is bad")
    assert driver.records()["a", 0].outcome == "failed"


def test_limits_of_what_has_ended_or_is_unknown_mean_nothing():
    driver = Driver(task("a"), slots=1)
    driver.do(driver.ready(0), 1.0)
    assert driver.change_limits("a", 2.0, timeout=1.0) == []
    assert driver.change_limits("z", 2.0, timeout=1.0) == []
