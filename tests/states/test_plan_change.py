"""A run at work gets another plan: limits at once, phases that have not begun when they begin, the rest not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from states.effects import BeginPhase, ChangeTasks, RetireConductor, StartConductor, Wake
from tests.states.state_scenes import (
    ANALYSE,
    BOTH,
    NAMES,
    PLAN,
    SIMULATION,
    TASKS,
    TRAIN,
    Slot,
    begin,
    change_plan,
    ended,
    exited,
    finalizing,
    go_on,
    kinds,
    passed,
    pause,
    ready,
    running,
    starting,
    stopping,
)

LIMITED = replace(PLAN, wall_clock=900)
RETIRED = RetireConductor(conductor=SIMULATION, incarnation=1)


def test_another_wall_clock_counts_from_the_same_beginning():
    slot = running(replace(LIMITED, worked=100), at=50)
    assert slot.send(change_plan(replace(LIMITED, worked=100, wall_clock=2000), at=700)) == [
        Wake(name="wall_clock", at=1950)
    ]
    assert "set back" in slot.drops(passed("wall_clock", at=850))
    slot.send(passed("wall_clock", at=1950))
    assert slot.state.name == "finalizing"
    assert slot.state.reason == "limit wall_clock of 2000 s reached in phase train"


def test_a_wall_clock_that_comes_later_counts_what_was_before():
    slot = running(at=50)
    slot.send(pause(at=100))
    slot.send(go_on(at=300))
    assert slot.send(change_plan(LIMITED, at=700)) == [Wake(name="wall_clock", at=1150)]


def test_a_wall_clock_that_is_gone_ends_nothing():
    slot = running(LIMITED)
    assert slot.send(change_plan(PLAN)) == []
    assert "means nothing" in slot.drops(passed("wall_clock", at=900))


def test_in_a_pause_the_new_clock_stands_still_too():
    slot = running(LIMITED, at=0)
    slot.send(pause(at=100))
    slot.send(change_plan(replace(PLAN, wall_clock=200), at=150))
    assert "stands still" in slot.drops(passed("wall_clock", at=200))
    assert Wake(name="wall_clock", at=1100) in slot.send(go_on(at=1000))


@pytest.mark.parametrize(("restarts", "left"), [(5, 4), (2, 1), (1, 0), (0, 0)])
def test_restarts_that_were_used_stay_used(restarts, left):
    slot = running(phase=1)
    slot.send(exited(TASKS))
    slot.send(change_plan(replace(PLAN, restarts=restarts)))
    assert slot.state.conductors.restarts_left == left


def test_later_phases_are_those_of_the_new_plan():
    slot = running()
    later = replace(BOTH, name="tasks alone", parts=frozenset({"tasks"}))
    slot.send(change_plan(replace(PLAN, phases=(TRAIN, later, ANALYSE))))
    assert slot.send(ended("simulation"))[-2:] == [BeginPhase(phase=1, name="tasks alone"), begin("tasks", 1)]


def test_conductors_and_phases_that_have_begun_stay():
    slot = running(phase=1)
    for phases in [
        (replace(TRAIN, name="other"), BOTH, ANALYSE),
        (TRAIN, BOTH),
        (TRAIN, BOTH, ANALYSE, TRAIN),
    ]:
        assert slot.refuses(change_plan(replace(PLAN, phases=phases))) == "1 of its phases have ended"
    tasks_alone = replace(BOTH, parts=frozenset({"tasks"}))
    assert (
        slot.refuses(change_plan(replace(PLAN, phases=(TRAIN, tasks_alone, ANALYSE))))
        == "phase both has begun"
    )
    fewer = replace(PLAN, conductors=PLAN.conductors[1:])
    assert slot.refuses(change_plan(fewer)) == "it would need other conductors"


def test_a_run_that_starts_begins_with_the_new_phases():
    slot = starting()
    first = replace(TRAIN, name="first")
    assert slot.send(change_plan(replace(PLAN, phases=(first, BOTH, ANALYSE)), renews=True)) == []
    assert BeginPhase(phase=0, name="first") in slot.send_all(*map(ready, NAMES))


def test_the_simulation_leaves_in_its_own_time_and_the_next_one_goes_on_for_no_restart():
    slot = running()
    assert slot.send(change_plan(PLAN, renews=True)) == [RETIRED]
    assert slot.send(change_plan(PLAN, renews=True)) == [], "it is asked already"
    [start, _] = slot.send(exited(SIMULATION, code=0))
    assert start == StartConductor(conductor=SIMULATION, kind="simulation", incarnation=2, delay=0.0)
    assert slot.send(ready(SIMULATION, 2)) == [begin("simulation", 0, 2)]
    assert slot.state.conductors.restarts_left == PLAN.restarts
    assert slot.send(change_plan(PLAN, renews=True)) == [RetireConductor(conductor=SIMULATION, incarnation=2)]


def test_a_simulation_that_leaves_may_end_its_part_before():
    slot = running()
    slot.send(change_plan(PLAN, renews=True))
    assert begin("simulation", 1) in slot.send(ended("simulation"))
    slot.send(exited(SIMULATION, code=0))
    assert slot.send(ready(SIMULATION, 2)) == [begin("simulation", 1, 2)]


def test_one_that_has_not_begun_needs_not_leave():
    slot = running()
    slot.send(exited(SIMULATION))
    assert slot.send(change_plan(PLAN, renews=True)) == [], "its successor reads the run file"
    slot = running()
    slot.send(pause())
    slot.send(ended("simulation"))
    assert slot.send(change_plan(PLAN, renews=True)) == [], "it begins when the pause ends"
    tasks = running(phase=2)
    assert tasks.send(change_plan(PLAN, renews=True)) == []


def test_tasks_at_work_are_told_their_limits():
    slot = running(phase=1)
    told = ChangeTasks(conductor=TASKS, incarnation=1, phase=1, part="tasks", tasks=("fit",))
    assert slot.send(change_plan(PLAN, tasks=("fit",))) == [told]
    slot.send(exited(TASKS))
    assert slot.send(change_plan(PLAN, tasks=("fit",))) == [], "they read the run file when they begin again"


def test_a_run_that_is_ending_or_not_there_refuses():
    for slot in (finalizing(), stopping(), Slot()):
        assert slot.refuses(change_plan(PLAN))


def test_retiring_is_no_kill():
    slot = running()
    slot.send(change_plan(PLAN, renews=True))
    assert kinds(slot.send(pause(hard=True)))[-1] == StartConductor or slot.state.name == "stopping"
