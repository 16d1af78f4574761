"""The scheduler core: how batches end, by a cancellation, with enough, and what their limits learn from them."""

from __future__ import annotations

import pytest

from governor.tasks.scheduling.events import (
    AttemptClosed,
    AttemptEnded,
    BatchEnded,
    CancelAttempt,
    Dispatch,
    KillRunner,
)
from tests.support.tasks.core_world import Driver, task


def test_cancel_ends_what_waits_at_once_and_what_works_when_it_is_dead():
    driver = Driver(task("a"), task("b", "a"), slots=1)
    driver.begin(driver.ready(0), 0.0)
    effects = driver.cancel(1.0)
    assert {(r.task, r.outcome) for r in driver.records().values()} == {("b", "cancelled")}
    assert KillRunner(0, "enough") in effects
    effects = driver.gone(0, 1.1)
    assert effects[-1] == BatchEnded("b", "stopped", 2, 'task "b" run 0 cancelled: enough')
    assert driver.records()["a", 0].seconds == 1.0


def test_a_result_that_overtakes_the_kill_of_a_cancel_is_kept():
    driver = Driver(task("a"))
    sent = driver.ready(0)
    driver.begin(sent, 0.5)
    driver.cancel(1.0)
    driver.end(sent, 1.0, value=3)
    driver.gone(0, 1.1)
    assert (driver.records()["a", 0].outcome, driver.records()["a", 0].value) == ("succeeded", 3)


def test_a_gentle_cancel_keeps_the_runner_of_a_task_that_obeys():
    driver = Driver(task("a"), task("b"), slots=1, grace=2.0)
    sent = driver.ready(0)
    driver.begin(sent, 0.5)
    assert driver.cancel(1.0, gentle=True)[0] == CancelAttempt(0, 1)
    driver.end(sent, 1.2, error="the task was cancelled")
    assert driver.records()["a", 0].outcome == "cancelled"
    assert not driver.of(KillRunner)
    driver.submit(task("c"), batch="c", now=2.0)
    assert driver.of(Dispatch)[-1].runner == 0


def test_a_failure_that_was_no_obedience_does_not_end_the_attempt():
    """Run 0 had failed before anybody asked it to end: run 1 goes on in its grace, and what it gives counts."""
    driver = Driver(task("a", repeat=2, retries=1), grace=2.0)
    sent = driver.ready(0)
    driver.begin(sent, 0.5)
    driver.cancel(1.0)
    driver.end(sent, 1.0, error="bad")
    assert not driver.of(KillRunner), "the attempt is not over"
    assert not driver.of(AttemptEnded), "what was cancelled is not tried again"
    driver.begin(sent, 1.1, run=1)
    driver.end(sent, 1.2, run=1, value=8)
    assert driver.records()["a", 1].value == 8
    driver.gone(0, 1.3)
    assert driver.records()["a", 0].outcome == "cancelled"


def test_a_deadline_that_was_missed_before_the_cancellation_stands():
    driver = Driver(task("a", timeout=1.0, retries=1), grace=2.0)
    driver.begin(driver.ready(0), 0.0)
    driver.tick(1.0)
    driver.cancel(1.5)
    driver.gone(0, 1.6)
    assert driver.records()["a", 0].outcome == "timed_out"
    assert not driver.of(AttemptEnded), "what was cancelled is not tried again"


def test_enough_is_min_num_successes_and_then_the_wait():
    driver = Driver(*(task(f"t{n}") for n in range(4)), slots=1, batch={"min_num": 2, "wait_after_min": 5.0})
    sent = driver.ready(0)
    for step, error in enumerate(["", "bad", ""]):
        effects = driver.do(sent, float(step), error=error, seconds=1.0)
        sent = driver.of(Dispatch, effects)[0]
    driver.begin(sent, 3.0)
    assert not driver.of(KillRunner, driver.tick(6.9)), "a failure is no success, the wait began at 2.0"
    assert driver.of(KillRunner, driver.tick(7.0))
    assert driver.gone(0, 7.1)[-1] == BatchEnded("b", "enough", 1, 'task "t1" run 0 failed: bad')
    assert driver.records()["t3", 0].outcome == "cancelled"


def test_a_task_has_succeeded_when_all_of_its_runs_have():
    driver = Driver(task("a", repeat=2), task("b"), slots=1, batch={"min_num": 1})
    sent = driver.ready(0)
    driver.do(sent, 1.0, run=0, error="bad")
    effects = driver.do(sent, 1.0, run=1)
    assert driver.of(Dispatch, effects)[0].attempts[0].task.id == "b", "one of two runs is not enough"


def test_the_dynamic_timeout_bounds_attempts_of_training_and_learns_from_them():
    seen, done = [], []

    class Limits:
        def limit(self, timeout=None):
            return 2.0

        def observe(self, step, seconds, is_eval):
            seen.append((step, seconds, is_eval))

        def step_done(self, step):
            done.append(step)

    driver = Driver(slots=1)
    driver.submit(task("a", timeout=9.0), task("b", timeout=9.0, is_eval=True), limits=Limits())
    sent = driver.ready(0)
    assert sent.attempts[0].limit == 2.0
    driver.begin(sent, 1.0)
    [evaluation] = driver.of(Dispatch, driver.end(sent, 1.5, seconds=0.4))
    assert evaluation.attempts[0].limit == 9.0
    driver.do(evaluation, 3.0)
    assert seen == [("b", 0.5, False), ("b", 0.0, True)]
    assert done == ["b"]


def test_a_run_that_failed_by_itself_in_time_fails_once():
    driver = Driver(task("a", timeout=1.0, retries=1), slots=1, grace=0.5)
    sent = driver.ready(0)
    driver.begin(sent, 0.0)
    driver.tick(1.0)
    effects = driver.end(sent, 0.9, error="bad")
    [failed] = driver.of(AttemptEnded, effects)
    assert failed.outcome == "failed"
    assert not driver.of(KillRunner), "it has ended, and in time"
    [retry_missing] = driver.of(Dispatch, effects)
    assert retry_missing.attempts[0].number == 2


def test_a_step_that_had_enough_teaches_the_dynamic_timeout():
    seen, done = [], []

    class Limits:
        def limit(self, timeout=None):
            return 99.0

        def observe(self, step, seconds, is_eval):
            seen.append(seconds)

        def step_done(self, step):
            done.append(step)

    driver = Driver(slots=2)
    driver.submit(task("a"), task("b"), limits=Limits(), min_num=1)
    first, second = driver.ready(0), driver.ready(1)
    driver.begin(second, 1.0)
    driver.do(first, 2.0)
    driver.gone(1, 3.0)
    assert (seen, done) == ([0.0, 1.0], ["b"]), "the one that was stopped counts with the time that it had"


@pytest.mark.parametrize("retries", [0, 1])
def test_of_many_runs_few_can_have_left_half_written_files(retries):
    driver = Driver(task("a", repeat=10_000, retries=retries), slots=1)
    sent = driver.ready(0)
    for run in range(3):
        driver.begin(sent, 1.0 + run, run=run)
        driver.end(sent, 1.5 + run, run=run)
    driver.begin(sent, 5.0, run=3)
    [closed] = driver.of(AttemptClosed, driver.gone(0, 6.0))
    assert 3 in closed.runs
    assert len(closed.runs) <= 256
    while driver.core.outcomes.has_followers:
        driver.tick(6.0)
    ended = driver.of(AttemptEnded) if retries else driver.records()
    assert len(ended) == (10_000 - 3 if retries else 10_000)
