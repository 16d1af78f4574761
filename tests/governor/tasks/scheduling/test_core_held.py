"""The scheduler core: batches that wait for what they need, and the bound of all attempts of a sub-task."""

from __future__ import annotations

import pytest

from governor.tasks.scheduling.events import (
    BatchEnded,
    BatchSpec,
    BatchSubmitted,
    Dispatch,
    Released,
)
from tests.support.tasks.core_world import Driver, task


def test_nothing_is_dispatched_while_all_is_paused():
    driver = Driver(task("a", repeat=3), slots=1, batch={"split": 1})
    sent = driver.ready(0)
    driver.core.is_paused = True
    assert not driver.of(Dispatch, driver.do(sent, 0.0))
    assert not driver.of(Dispatch, driver.submit(task("pinned"), batch="p", pin=0))
    driver.core.is_paused = False
    [pinned] = driver.of(Dispatch, driver.tick(0.0))
    assert pinned.attempts[0].batch == "p"
    [second] = driver.of(Dispatch, driver.do(pinned, 0.0))
    assert second.attempts[0].runs == (1,)


def test_what_is_cancelled_in_a_pause_ends_and_what_cannot_be_told_waits():
    driver = Driver(task("a", repeat=10_000), slots=1)
    driver.core.is_paused = driver.core.is_full = True
    driver.cancel(0.0)
    driver.tick(0.0)
    assert driver.records() == {}
    driver.core.is_full = False
    while driver.core.outcomes.has_followers:
        driver.tick(0.0)
    assert len(driver.records()) == 10_000
    assert driver.of(BatchEnded)


def test_a_held_batch_that_is_being_cancelled_is_not_released():
    driver = held(task("a", repeat=10_000))
    driver.ready(0)
    driver.cancel(0.0)
    assert driver.core.outcomes.has_followers
    assert not driver.of(Dispatch, driver.on(Released(0.0, "b")))
    while driver.core.outcomes.has_followers:
        driver.tick(0.0)
    assert {record.outcome for record in driver.records().values()} == {"cancelled"}
    assert len(driver.records()) == 10_000
    assert driver.of(BatchEnded)


def held(*tasks):
    driver = Driver()
    driver.on(BatchSubmitted(0.0, BatchSpec(id="b", tasks=tasks), held=True))
    return driver


def test_nothing_of_a_held_batch_begins_before_it_is_released():
    driver = held(task("a"), task("b", "a"))
    assert not driver.of(Dispatch)
    driver.on(Released(1.0, "b"))
    sent = driver.ready(0, 1.0)
    assert [attempt.task.id for attempt in sent.attempts] == ["a"]
    (after,) = driver.of(Dispatch, driver.do(sent, 2.0))
    assert driver.do(after, 3.0)[-1] == BatchEnded("b", "tasks_done", 0, "")


def test_what_never_comes_fails_it():
    driver = held(task("a", retries=3), task("b", "a"))
    driver.on(Released(1.0, "b", "no room"))
    records = driver.records()
    assert (records["a", 0].outcome, records["a", 0].error) == ("failed", "no room")
    assert records["b", 0].outcome == "upstream_failed"


@pytest.mark.parametrize("error", ["", "no room"])
def test_what_was_cancelled_meanwhile_stays_so(error):
    driver = held(task("a"), task("b"))
    driver.cancel(1.0)
    driver.on(Released(2.0, "b", error))
    assert {record.outcome for record in driver.records().values()} == {"cancelled"}
    assert driver.ready(0, 2.0) is None


def test_an_attempt_gets_what_is_left_of_the_budget_and_none_without():
    driver = Driver()
    tasks = (task("a", timeout=4.0, retries=9),)
    driver.on(BatchSubmitted(0.0, BatchSpec(id="b", tasks=tasks, budget=10.0)))
    sent, limits, now = driver.ready(0), [], 0.0
    for runner in range(3):
        limits.append(sent.attempts[0].limit)
        driver.begin(sent, now)
        now += sent.attempts[0].limit
        driver.tick(now)
        driver.gone(runner, now + 1.0)
        now += 50.0
        if runner < 2:
            sent = driver.ready(runner + 1, now)
    assert limits == [4.0, 4.0, 2.0], "neither the queue nor the way to its end counts"
    assert driver.records()["a", 0].outcome == "timed_out"
    assert driver.records()["a", 0].attempts == 3
