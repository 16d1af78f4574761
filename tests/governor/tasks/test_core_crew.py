"""The scheduler core: which runners there are, and which of them go."""

from __future__ import annotations

from core_world import Driver, task

from governor.tasks.planning.crew import START_FAILURES
from governor.tasks.planning.story import (
    BatchEnded,
    Dispatch,
    KillRunner,
    Replaced,
    Resized,
    RunnerReady,
    StartRunner,
)


def test_runners_with_resources_are_given_back_when_nothing_waits_for_them():
    driver = Driver(task("a", resources={"gpus": 1}))
    effects = driver.do(driver.ready(0), 1.0)
    assert KillRunner(0, "not needed any more") in effects


def test_what_can_never_be_scheduled_fails_with_the_reason():
    driver = Driver(task("a", resources={"gpus": 9}, repeat=2), why_never={(("gpus", 9),): "no gpus"})
    assert [(r.outcome, r.error) for r in driver.records().values()] == [("failed", "no gpus")] * 2
    assert isinstance(driver.effects[-1], BatchEnded)


def test_runners_that_cannot_start_are_given_up():
    driver = Driver(task("a"))
    for runner in range(START_FAILURES):
        driver.gone(runner, 1.0, "no python")
    assert driver.records()["a", 0].error == "no runner can be started: no python"


def test_nodes_that_come_bring_places_and_nodes_that_go_take_them():
    driver = Driver(*(task(f"t{n}") for n in range(4)), slots=1)
    driver.ready(0)
    assert driver.on(Resized({(): 2}, {}, 1.0)) == [StartRunner(1, ())]
    assert driver.ready(1, 2.0).place == 1
    driver.on(Resized({(): 1}, {}, 3.0))
    second = driver.of(Dispatch)[1]
    assert not driver.of(Dispatch, driver.do(second, 4.0, seconds=1.0)), "there is no such place any more"


def test_a_runner_is_replaced_on_request_once_the_new_one_is_ready():
    driver = Driver(task("a"), slots=1)
    driver.do(driver.ready(0), 1.0)
    assert driver.on(Replaced(0, 2.0)) == [StartRunner(1, ())]
    driver.submit(task("c"), batch="c", now=2.5)
    assert len(driver.of(Dispatch)) == 1, "no new work for a runner that is to go"
    assert driver.of(KillRunner, driver.on(RunnerReady(1, 3.0)))
    [sent] = driver.of(Dispatch, driver.gone(0, 3.1))
    assert (sent.runner, sent.place) == (1, 0)


def test_a_pinned_batch_works_on_its_place_alone():
    driver = Driver(slots=2)
    driver.submit(task("a"), batch="a")
    driver.submit(task("b"), batch="b")
    driver.ready(0)
    driver.ready(1)
    driver.submit(task("p", repeat=2), batch="p", pin=1, split=1)
    zero, one = driver.of(Dispatch)
    assert not driver.of(Dispatch, driver.do(zero, 1.0))
    [sent] = driver.of(Dispatch, driver.do(one, 1.0))
    assert (sent.place, sent.attempts[0].task.id) == (1, "p")


def test_only_failures_in_a_row_give_a_shape_up():
    driver = Driver(task("a", repeat=9), slots=1, batch={"split": 1})
    runner = 0
    for _ in range(2):
        for _ in range(START_FAILURES - 1):
            driver.gone(runner, 1.0, "no python")
            runner += 1
        driver.begin(driver.ready(runner, 2.0), 2.0)
        driver.gone(runner, 3.0)
        runner += 1
    assert {record.outcome for record in driver.records().values()} == {"crashed"}
    assert len(driver.records()) == 2


def test_places_that_are_no_more_are_not_taken_again():
    driver = Driver(*(task(f"t{n}") for n in range(9)), slots=3)
    for runner in range(3):
        driver.begin(driver.ready(runner), 0.0)
    driver.on(Resized({(): 1}, {}, 1.0))
    for runner in range(3):
        driver.gone(runner, 2.0)
    for number in range(3, 6):
        driver.on(RunnerReady(number, 3.0))
    assert [sent.runner for sent in driver.of(Dispatch)] == [0, 1, 2, 3]
    assert driver.of(Dispatch)[-1].place == 0


def test_of_runners_without_a_place_one_spare_is_kept():
    driver = Driver(*(task(f"t{n}") for n in range(3)), slots=3)
    sent = [driver.ready(runner) for runner in range(3)]
    for each in sent:
        driver.do(each, 1.0, seconds=1.0)
    effects = driver.on(Resized({(): 1}, {}, 2.0))
    assert [effect.reason for effect in driver.of(KillRunner, effects)] == ["not needed any more"]


def test_a_warm_place_whose_runner_dies_idle_gets_another_one_unless_none_can_start():
    driver = Driver(slots=2)
    assert driver.core.warm(0.0) == [StartRunner(0, ()), StartRunner(1, ())]
    driver.ready(0)
    driver.ready(1)
    assert driver.gone(0, 1.0) == [StartRunner(2, ())]
    assert driver.gone(2, 2.0, "no python") == [], "it could not start: it waits for work"
    driver.submit(task("a", repeat=2), split=1)
    assert driver.effects[-1] == StartRunner(3, ())
