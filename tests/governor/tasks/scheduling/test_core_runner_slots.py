"""The scheduler core: which runners there are, and which of them go."""

from __future__ import annotations

from governor.tasks.scheduling.events import (
    AttemptEnded,
    BatchEnded,
    Dispatch,
    KillRunner,
    Replaced,
    Resized,
    RunnerReady,
    StartRunner,
)
from governor.tasks.scheduling.runner_slots import START_FAILURES, START_PAUSE
from tests.support.tasks.core_world import GPU, Driver, task


def test_runners_with_resources_are_given_back_when_nothing_waits_for_them():
    driver = Driver(task("a", resources={"gpus": 1}))
    effects = driver.do(driver.ready(0), 1.0)
    assert KillRunner(0, "not needed any more", is_idle=True) in effects


def test_what_can_never_be_scheduled_fails_with_the_reason():
    driver, nine = Driver(), (("gpus", 9),)
    driver.on(Resized(0.0, {nine: 0}, {nine: "no gpus"}))
    driver.submit(task("a", resources={"gpus": 9}, repeat=2))
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
    assert driver.on(Resized(1.0, {(): 2}, {})) == [StartRunner(1, ())]
    assert driver.ready(1, 2.0).slot_index == 1
    driver.on(Resized(3.0, {(): 1}, {}))
    second = driver.of(Dispatch)[1]
    assert not driver.of(Dispatch, driver.do(second, 4.0, seconds=1.0)), "there is no such place any more"


def test_a_runner_is_replaced_on_request_once_the_new_one_is_ready():
    driver = Driver(task("a"), slots=1)
    driver.do(driver.ready(0), 1.0)
    assert driver.on(Replaced(2.0, 0)) == [StartRunner(1, ())]
    driver.submit(task("c"), batch="c", now=2.5)
    assert len(driver.of(Dispatch)) == 1, "no new work for a runner that is to go"
    assert driver.of(KillRunner, driver.on(RunnerReady(3.0, 1)))
    [sent] = driver.of(Dispatch, driver.gone(0, 3.1))
    assert (sent.runner, sent.slot_index) == (1, 0)


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
    assert (sent.slot_index, sent.attempts[0].task.id) == (1, "p")


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
    driver.on(Resized(1.0, {(): 1}, {}))
    for runner in range(3):
        driver.gone(runner, 2.0)
    for number in range(3, 6):
        driver.on(RunnerReady(3.0, number))
    assert [sent.runner for sent in driver.of(Dispatch)] == [0, 1, 2, 3]
    assert driver.of(Dispatch)[-1].slot_index == 0


def test_of_runners_without_a_place_one_spare_is_kept():
    driver = Driver(*(task(f"t{n}") for n in range(3)), slots=3)
    sent = [driver.ready(runner) for runner in range(3)]
    for each in sent:
        driver.do(each, 1.0, seconds=1.0)
    effects = driver.on(Resized(2.0, {(): 1}, {}))
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


def test_runners_that_cannot_start_harm_nobody_while_another_one_lives():
    driver = Driver(task("a", repeat=9), slots=4, batch={"split": 1})
    sent = driver.ready(0)
    for runner in driver.of(StartRunner)[1:]:
        driver.gone(runner.runner, 1.0, "no memory")
    while sent is not None:
        sent = next(iter(driver.of(Dispatch, driver.do(sent, 2.0))), None)
    assert {record.outcome for record in driver.records().values()} == {"succeeded"}
    driver.submit(task("late"), batch="late", now=3.0)
    assert driver.of(Dispatch)[-1].attempts[0].task.id == "late"


def test_starts_pause_after_failures_and_go_on():
    driver = Driver(task("a"), slots=1)
    for runner in range(START_FAILURES):
        driver.gone(runner, 1.0, "no python")
    assert driver.core.next_alarm() == 1.0 + START_PAUSE
    assert not driver.of(StartRunner, driver.submit(task("late"), batch="late", now=2.0))
    [start] = driver.of(StartRunner, driver.tick(1.0 + START_PAUSE))
    driver.do(driver.ready(start.runner, 9.0), 9.0)
    assert driver.records("late")["late", 0].outcome == "succeeded"


def test_runners_lost_with_their_node_are_no_failed_starts():
    driver = Driver(task("a"), slots=1)
    for runner in range(START_FAILURES + 1):
        driver.gone(runner, 1.0, "its node is lost", node_lost=True)
    assert not driver.records()
    assert driver.ready(START_FAILURES + 1, 2.0) is not None


def test_what_waits_for_a_place_is_given_up_too():
    driver = Driver(task("a"), slots=1, batch={"pin": 0})
    for runner in range(START_FAILURES):
        driver.gone(runner, 1.0, "no python")
    assert driver.records()["a", 0].error == "no runner can be started: no python"


def test_a_lost_node_costs_no_attempt():
    driver = Driver(task("a", repeat=2, retries=0), slots=1, batch={"split": 2})
    sent = driver.ready(0)
    driver.do(sent, 1.0, run=0)
    driver.begin(sent, 1.5, run=1)
    effects = driver.gone(0, 2.0, "its node is lost", node_lost=True)
    [retry_missing] = driver.of(AttemptEnded, effects)
    assert (retry_missing.run, retry_missing.outcome, retry_missing.error) == (
        1,
        "crashed",
        "its node is lost",
    )
    second = driver.ready(1, 3.0)
    assert (second.attempts[0].runs, second.attempts[0].number) == ((1,), 1)
    driver.do(second, 4.0, run=1)
    assert {record.outcome for record in driver.records().values()} == {"succeeded"}


def test_no_runner_is_started_after_close():
    driver = Driver(slots=2)
    driver.core.warm(0.0)
    driver.ready(0)
    driver.core.close()
    assert not driver.of(StartRunner, driver.gone(0, 1.0))
    assert not driver.of(StartRunner, driver.submit(task("a"), now=2.0))


def test_places_that_go_and_come_again_are_given_once():
    driver = Driver(*(task(f"t{n}") for n in range(4)), slots=4)
    sent = [driver.ready(runner) for runner in range(4)]
    assert sorted(each.slot_index for each in sent) == [0, 1, 2, 3]
    driver.on(Resized(1.0, {(): 2}, {}))
    driver.on(Resized(2.0, {(): 4}, {}))
    driver.submit(*(task(f"u{n}") for n in range(4)), batch="u", now=3.0)
    assert not driver.of(StartRunner, driver.tick(3.0)), "four are at work on four places"
    indices = [driver.of(Dispatch, driver.do(each, 4.0))[0].slot_index for each in sent]
    assert sorted(indices) == [0, 1, 2, 3]


CPU, CPUS = (("cpus", 1.0),), (("cpus", 2.0),)


def test_runners_make_room_for_what_is_more_urgent_and_needs_what_they_hold():
    driver = Driver(slots=1)
    driver.on(Resized(0.0, {CPU: 2, CPUS: 1}, {}))
    driver.submit(*(task(f"t{n}", resources={"cpus": 1.0}) for n in range(20)))
    sent = [driver.ready(start.runner) for start in driver.of(StartRunner)]
    big = task("big", resources={"cpus": 2.0}, priority=1)
    [start] = driver.of(StartRunner, driver.submit(big, batch="big", now=1.0))
    for each in sent:
        effects = driver.do(each, 2.0)
        assert [kill.runner for kill in driver.of(KillRunner, effects)] == [each.runner]
        assert not driver.of(Dispatch, effects)
        driver.gone(each.runner, 2.1)
    [dispatched] = driver.of(Dispatch, driver.on(RunnerReady(3.0, start.runner)))
    assert dispatched.attempts[0].task.id == "big"


def test_what_is_less_urgent_has_its_turn_once_it_has_waited_long():
    driver = Driver(slots=1, age=100.0)
    driver.on(Resized(0.0, {CPU: 1, CPUS: 1}, {}))
    driver.submit(task("first", resources={"cpus": 1.0}))
    [start] = driver.of(StartRunner)
    sent = driver.ready(start.runner)
    driver.submit(task("big", resources={"cpus": 2.0}), batch="big", now=1.0)
    more = [task(f"t{n}", resources={"cpus": 1.0}, priority=1) for n in range(9)]
    driver.submit(*more, batch="more", now=2.0)
    effects = driver.do(sent, 100.0)
    assert not driver.of(KillRunner, effects), "it has higher priority, and nobody has waited for 100 s"
    [sent] = driver.of(Dispatch, effects)
    effects = driver.do(sent, 101.5)
    assert [kill.runner for kill in driver.of(KillRunner, effects)] == [sent.runner]


def test_runners_of_other_resources_make_no_room():
    driver = Driver(slots=1)
    driver.on(Resized(0.0, {CPU: 1, GPU: 1}, {}))
    driver.submit(*(task(f"t{n}", resources={"cpus": 1.0}) for n in range(2)))
    [start] = driver.of(StartRunner)
    sent = driver.ready(start.runner)
    driver.submit(task("big", resources={"gpus": 1.0}, priority=1), batch="big", now=1.0)
    assert not driver.of(KillRunner, driver.do(sent, 2.0))
