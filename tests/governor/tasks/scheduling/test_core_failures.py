"""The scheduler core: bounds of a batch's failures, and retries by the kind of failure."""

from __future__ import annotations

from governor.episodes.rules.failures import FailureBounds
from governor.messages import Failures
from governor.tasks.scheduling.events import AttemptEnded, BatchEnded, Dispatch, KillRunner
from tests.support.tasks.core_world import Driver, task


def bounded(planned, **keys):
    return {"bounds": FailureBounds(Failures(**keys), planned, "runs of tasks")}


def outcomes(driver):
    return {name: record.outcome for (name, _), record in driver.records().items()}


def test_the_first_failure_beyond_the_bound_cancels_what_waits_and_what_works():
    driver = Driver(*(task(f"t{n}") for n in range(4)), slots=2, batch=bounded(4, at_most=0))
    first, second = driver.ready(0), driver.ready(1)
    driver.begin(second, 0.5)
    effects = driver.do(first, 1.0, error="bad")
    assert not driver.of(Dispatch, effects), "nothing begins any more"
    assert driver.of(KillRunner, effects), "what works is stopped"
    effects = driver.gone(1, 1.1)
    told = 'task "t0" run 0 failed: bad'
    assert effects[-1] == BatchEnded("b", "failures", 1, told, "failures.at_most of 0")
    assert outcomes(driver) == {"t0": "failed", "t1": "cancelled", "t2": "cancelled", "t3": "cancelled"}


def test_what_depends_on_the_failed_task_is_no_failure_of_its_own_and_not_cancelled():
    driver = Driver(task("a"), task("b", "a"), task("c"), slots=1, batch=bounded(3, at_most=0))
    driver.do(driver.ready(0), 1.0, error="bad")
    assert outcomes(driver) == {"a": "failed", "b": "upstream_failed", "c": "cancelled"}


def test_a_batch_bears_its_bound_and_ends_as_ever():
    driver = Driver(*(task(f"t{n}") for n in range(3)), slots=1, batch=bounded(3, at_most="34%"))
    sent = driver.ready(0)
    for error in ("bad", "", ""):
        effects = driver.do(sent, 1.0, error=error)
        sent = next(iter(driver.of(Dispatch, effects)), None)
    assert effects[-1] == BatchEnded("b", "tasks_done", 1, 'task "t0" run 0 failed: bad')


def test_failures_in_a_row_of_different_tasks_end_it():
    driver = Driver(*(task(f"t{n}") for n in range(9)), slots=1, batch=bounded(9, consecutive=2))
    sent = driver.ready(0)
    for error in ("bad", "", "bad", "bad"):
        effects = driver.do(sent, 1.0, error=error)
        sent = next(iter(driver.of(Dispatch, effects)), None)
    assert (effects[-1].end, effects[-1].exceeded) == ("failures", "failures.consecutive of 2")
    assert list(outcomes(driver).values()).count("cancelled") == 5


def test_a_batch_whose_bound_was_passed_before_runs_nothing():
    bounds = {"bounds": FailureBounds(Failures(at_most=1), 9, "runs of tasks", failed=2)}
    driver = Driver(task("a"), task("b", "a"), batch=bounds)
    assert outcomes(driver) == {"a": "cancelled", "b": "cancelled"}
    assert driver.effects[-1].failures == 0
    assert driver.ready(0) is None


def test_a_batch_without_bounds_goes_on():
    driver = Driver(task("a"), task("b"), slots=1)
    effects = driver.do(driver.ready(0), 1.0, error="bad")
    driver.do(driver.of(Dispatch, effects)[0], 2.0)
    assert outcomes(driver) == {"a": "failed", "b": "succeeded"}


def test_retries_by_kind_count_each_kind_alone():
    driver = Driver(task("a", retry={"infrastructure": 1, "user": 2}), slots=1)
    sent = driver.ready(0)
    for _ in range(2):
        effects = driver.do(sent, 1.0, error="bad")
        assert [each.outcome for each in driver.of(AttemptEnded, effects)] == ["failed"]
        sent = driver.of(Dispatch, effects)[0]
    driver.begin(sent, 2.0)
    effects = driver.gone(0, 2.1)
    assert [each.outcome for each in driver.of(AttemptEnded, effects)] == ["crashed"]
    sent = driver.ready(1, 2.2)
    driver.do(sent, 3.0, error="bad")
    assert (driver.records()["a", 0].outcome, driver.records()["a", 0].attempts) == ("failed", 4)


def test_a_kind_without_retries_is_not_tried_again():
    driver = Driver(task("a", retry={"infrastructure": 3}), slots=1)
    driver.do(driver.ready(0), 1.0, error="bad")
    assert (driver.records()["a", 0].outcome, driver.records()["a", 0].attempts) == ("failed", 1)


def test_a_program_that_a_signal_has_killed_is_crashed_and_its_runner_goes_on():
    driver = Driver(task("a", retry={"infrastructure": 1}), slots=1)
    effects = driver.do(driver.ready(0), 1.0, error="killed by SIGSEGV", crashed=True)
    assert [each.outcome for each in driver.of(AttemptEnded, effects)] == ["crashed"]
    [sent] = driver.of(Dispatch, effects)
    assert sent.runner == 0
    driver.do(sent, 2.0, error="exit code 1")
    assert (driver.records()["a", 0].outcome, driver.records()["a", 0].attempts) == ("failed", 2)
