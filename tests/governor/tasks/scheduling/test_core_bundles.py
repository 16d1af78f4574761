"""The scheduler core: what travels together, and who goes first."""

from __future__ import annotations

from governor.tasks.protocol.wire import Begun, Over
from governor.tasks.scheduling.attempts import REVOKE_AFTER
from governor.tasks.scheduling.bundles import BUNDLE_SECONDS, LEAST_SECONDS, RUN_SECONDS
from governor.tasks.scheduling.events import (
    Cancelled,
    Dispatch,
    KillRunner,
    Revoke,
    RunnerReported,
)
from tests.support.tasks.core_world import Driver, task


def bundled(count=40, **fields):
    """A driver with one place whose runner has a bundle of small tasks."""
    driver = Driver(*(task(f"t{n}", **fields) for n in range(count)), slots=1)
    first = driver.ready(0)
    assert len(first.attempts) == 1, "a call never seen before travels alone"
    [sent] = driver.of(Dispatch, driver.do(first, 0.0, seconds=0.0))
    assert len(sent.attempts) > 5
    return driver, sent


def test_small_tasks_travel_in_bundles_and_each_has_its_own_end():
    driver, sent = bundled()
    tickets = [attempt.ticket for attempt in sent.attempts]
    for ticket in tickets:
        driver.on(RunnerReported(0.1, 0, [Begun(ticket, 0, 0.1), Over(ticket, 0, 0.1, 0.0)]))
    assert len(driver.records()) == 1 + len(tickets)


def test_what_waits_behind_a_long_run_is_taken_back_unharmed_in_its_order():
    driver, sent = bundled()
    driver.begin(sent, 0.5)
    assert driver.core.next_alarm() == 0.5 + REVOKE_AFTER
    assert driver.tick(0.5 + REVOKE_AFTER) == [Revoke(0)]
    driver.revoked(sent, 0.6, *range(1, len(sent.attempts)))
    [retry_missing] = driver.of(Dispatch, driver.end(sent, 2.0, seconds=1.0))
    back = retry_missing.attempts[0]
    assert (back.task.id, back.number) == (sent.attempts[1].task.id, 1)


def test_a_kill_takes_one_task_and_the_rest_of_its_bundle_goes_on():
    driver, sent = bundled(timeout=3.0)
    driver.begin(sent, 1.0)
    driver.gone(0, 2.0)
    hit = sent.attempts[0].task.id
    assert driver.records()[hit, 0].outcome == "crashed"
    retry_missing = driver.ready(1, 3.0)
    assert retry_missing.attempts[0].task.id == sent.attempts[1].task.id
    assert {attempt.number for attempt in retry_missing.attempts} == {1}


def test_a_deadline_inside_a_bundle_takes_back_first_and_kills_then():
    driver, sent = bundled(timeout=0.01)
    driver.begin(sent, 0.5)
    assert driver.tick(0.51) == [Revoke(0)]
    assert driver.of(KillRunner, driver.revoked(sent, 0.52, *range(1, len(sent.attempts))))
    driver.gone(0, 0.53)
    assert {record.outcome for record in driver.records().values()} == {"succeeded", "timed_out"}


def test_the_next_of_a_bundle_that_has_begun_meanwhile_is_not_harmed():
    driver, sent = bundled(timeout=0.01)
    driver.begin(sent, 0.5)
    driver.tick(0.51)
    first, second = sent.attempts[:2]
    driver.on(RunnerReported(0.52, 0, [Over(first.ticket, 0, 0.52, 0.02), Begun(second.ticket, 0, 0.52)]))
    assert not driver.of(KillRunner, driver.revoked(sent, 0.52, *range(2, len(sent.attempts))))
    assert driver.records()[first.task.id, 0].outcome == "timed_out"
    driver.end(sent, 0.525, index=1)
    assert driver.records()[second.task.id, 0].outcome == "succeeded"


def test_who_imports_for_long_gives_back_what_waits_behind_it():
    driver, sent = bundled()
    assert driver.import_(sent, 0.1) == []
    assert driver.core.next_alarm() == 0.1 + REVOKE_AFTER
    assert driver.tick(0.1 + REVOKE_AFTER) == [Revoke(0)]


def test_what_could_not_be_taken_back_once_is_asked_for_again():
    driver, sent = bundled()
    driver.begin(sent, 0.5)
    assert driver.tick(0.6) == [Revoke(0)]
    driver.revoked(sent, 0.6)
    driver.end(sent, 0.7)
    driver.begin(sent, 0.7, index=1)
    assert driver.tick(0.8) == [Revoke(0)]


def test_a_cancelled_task_that_begins_before_it_was_taken_back_is_ended():
    driver = Driver(task("a"), slots=1)
    first = driver.ready(0)
    driver.submit(task("b"), batch="c", rank=(1.0, 0))
    driver.submit(task("d"), batch="e", rank=(2.0, 0))
    [sent] = driver.of(Dispatch, driver.do(first, 0.0, seconds=0.0))
    head, tail = sent.attempts
    driver.on(Cancelled(0.2, tail.batch, "enough"))
    effects = driver.on(
        RunnerReported(
            0.3, 0, [Begun(head.ticket, 0, 0.3), Over(head.ticket, 0, 0.3, 0.0), Begun(tail.ticket, 0, 0.3)]
        )
    )
    assert driver.of(KillRunner, effects)


# -- order ----------------------------------------------------------------------------------------------------


def order(driver, count, now=0.0):
    """Ids in the order in which one runner gets them, each run taking a second."""
    got = []
    sent = driver.ready(0, now)
    for step in range(count):
        got.append(sent.attempts[0].task.id)
        sent = next(iter(driver.of(Dispatch, driver.do(sent, now + step, seconds=1.0))), None)
    return got


def test_priority_then_batch_then_training_before_evaluation():
    driver = Driver(slots=1)
    driver.submit(task("late"), batch=2, rank=(2.0, 0))
    driver.submit(task("eval", is_eval=True), task("train"), batch="1/x", rank=(1.0, 1))
    driver.submit(task("early"), batch=1, rank=(1.0, 0))
    driver.submit(task("urgent", priority=5), batch=9, rank=(9.0, 0))
    assert order(driver, 5) == ["urgent", "early", "train", "eval", "late"]


def test_who_has_waited_long_enough_is_not_overtaken_any_more():
    driver = Driver(slots=1, age=10.0)
    driver.submit(task("late"), batch=2, rank=(2.0, 0))
    driver.submit(task("early"), batch=1, rank=(1.0, 0), now=5.0)
    assert order(driver, 2, now=11.0) == ["late", "early"]


def test_a_call_never_seen_before_shares_a_bundle_with_nobody():
    driver = Driver(slots=1)
    known = [task(f"k{n}") for n in range(4)]
    driver.submit(task("first"), known[0], task("new", call="m:other"), *known[1:], batch="mixed")
    [sent] = driver.of(Dispatch, driver.do(driver.ready(0), 0.0, seconds=0.0))
    assert [attempt.task.id for attempt in sent.attempts] == ["k0"], "the one behind is not known"
    [alone] = driver.of(Dispatch, driver.do(sent, 0.1, seconds=0.0))
    assert [attempt.task.id for attempt in alone.attempts] == ["new"], "those behind are known, it is not"


def test_what_waits_on_a_runner_is_taken_back_and_cancelled_with_its_batch():
    driver = Driver(task("a"), slots=1)
    first = driver.ready(0)
    driver.submit(task("b"), batch="c", rank=(1.0, 0))
    driver.submit(task("d"), batch="e", rank=(2.0, 0))
    [sent] = driver.of(Dispatch, driver.do(first, 0.0, seconds=0.0))
    driver.begin(sent, 0.5)
    assert driver.on(Cancelled(0.6, "e", "enough")) == [Revoke(0)], "its neighbour at work is not harmed"
    driver.revoked(sent, 0.6, 1)
    record = driver.records("e")["d", 0]
    assert (record.outcome, record.attempts) == ("cancelled", 0)
    assert not driver.of(Dispatch, driver.end(sent, 0.7))
    assert driver.records("c")["b", 0].outcome == "succeeded"


def test_the_last_tasks_are_shared_between_runners_unless_they_are_very_short():
    for seconds, least in ((0.0, LEAST_SECONDS / RUN_SECONDS), (LEAST_SECONDS, 1)):
        driver = Driver(*(task(f"t{n}") for n in range(60)), slots=2)
        first, _ = driver.ready(0), driver.ready(1)
        [sent] = driver.of(Dispatch, driver.do(first, 0.0, seconds=seconds))
        waiting = 58
        assert len(sent.attempts) == max(
            min(waiting, least), min(waiting // 2, BUNDLE_SECONDS // (seconds + RUN_SECONDS))
        )
