"""Running: what conditions of a phase ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from states import Finalizing, Running
from states.effects import EndPhase, StartConductor, StopConductor, StopPart, Wake, WriteResult
from tests.states.state_scenes import (
    ANALYSE,
    LAKE,
    PLAN,
    SIMULATION,
    TASKS,
    TRAIN,
    asked,
    begin,
    ended,
    exited,
    kinds,
    ready,
    running,
)


def test_restart_stops_the_conductors_of_the_episodes_for_one_restart():
    slot = running()
    assert slot.send(asked("RESTART")) == [
        StopConductor(conductor=LAKE, incarnation=1, first="message"),
        StopConductor(conductor=SIMULATION, incarnation=1, first="message"),
    ]
    assert slot.state.conductors.restarts_left == 1
    assert slot.send(asked("RESTART")) == [], "they are exiting already"
    assert slot.send(exited(LAKE, code=0, at=50)) == [
        StartConductor(conductor=LAKE, kind="environment", incarnation=2, delay=0.0),
        Wake(name="restart", at=110, conductor=LAKE, incarnation=2),
    ]
    slot.send(exited(SIMULATION, code=0))
    assert slot.send(ready(SIMULATION, 2)) == [begin("simulation", 0, 2)]
    assert slot.state.conductors.restarts_left == 1
    assert "RESTART" in slot.state.conductors[LAKE].last_exit
    slot.send(ready(LAKE, 2))
    assert slot.send(exited(LAKE, 2))[0].delay == 0.25, "it costs the back-off of a first restart"
    assert slot.state.conductors.restarts_left == 0


def test_restart_beyond_the_budget_fails_the_run_with_the_name_of_the_condition():
    slot = running(replace(PLAN, restarts=0))
    sent = slot.send(asked("RESTART"))
    assert isinstance(slot.state, Finalizing)
    assert slot.state.outcome == "failed"
    assert (
        slot.state.reason == "until[0] (mine:Rule): RESTART (the budget of 0 conductor restarts is used up)"
    )
    assert StopPart in kinds(sent)


def test_stop_phase_stops_the_tasks_too():
    slot = running(phase=1)
    reason = "until[0] (mine:Rule): STOP_PHASE"
    assert slot.send(asked("STOP_PHASE", phase=1)) == [
        StopPart(phase=1, part="tasks", conductor=TASKS, incarnation=1, reason=reason)
    ]
    slot.send(ended("simulation", 1, end="until"))
    sent = slot.send(ended("tasks", 1, end="stopped"))
    assert sent[0] == EndPhase(phase=1, name="both", end="until+stopped")
    assert isinstance(slot.state, Running)
    assert slot.state.phase == 2
    assert not slot.state.stopped


def test_tasks_whose_conductor_exits_before_it_has_stopped_them_are_not_begun_again():
    slot = running(phase=1)
    slot.send_all(asked("STOP_PHASE", phase=1), ended("simulation", 1, end="until"), exited(TASKS))
    assert EndPhase(phase=1, name="both", end="until+stopped") in slot.send(ready(TASKS, 2))
    assert slot.state.phase == 2


def test_the_simulation_on_ray_is_begun_again_without_the_tasks_that_were_to_stop():
    slot = running(
        replace(PLAN, phases=(TRAIN, replace(PLAN.phases[1], simulated_by=TASKS), ANALYSE)), phase=1
    )
    slot.send_all(asked("STOP_PHASE", phase=1, conductor=TASKS), exited(TASKS))
    assert slot.send(ready(TASKS, 2)) == [replace(begin("simulation", 1, 2), conductor=TASKS)]


def test_shutdown_ends_the_run_after_this_phase():
    slot = running()
    assert slot.send(asked("SHUTDOWN")) == []
    sent = slot.send(ended("simulation", 0, end="until"))
    reason = "until[0] (mine:Rule): SHUTDOWN"
    assert sent[0] == EndPhase(phase=0, name="train", end="until")
    assert WriteResult(outcome="finished", reason=reason) in sent


def test_shutdown_is_no_excuse_for_failures_of_the_phase():
    slot = running()
    slot.send_all(asked("SHUTDOWN"), ended("simulation", 0, failures=1, first="episode 3: boom"))
    assert (slot.state.outcome, slot.state.reason) == (
        "failed",
        "phase train: 1 ended badly, first episode 3: boom",
    )


def test_pause_is_what_the_run_waits_for_until_its_simulation_begins_again():
    slot = running()
    slot.send(asked("PAUSE"))
    assert slot.state.waits_for == "phase train: the end of a pause (until[0] (mine:Rule): PAUSE)"
    slot.send_all(exited(SIMULATION), ready(SIMULATION, 2))
    assert slot.state.waits_for == "phase train: simulation to end"


@pytest.mark.parametrize("flow", ["RESET", "STOP_SIMULATION"])
def test_what_the_simulation_does_by_itself_is_for_the_record(flow):
    slot = running()
    before = slot.state
    assert slot.send(asked(flow)) == []
    assert slot.state == before


def test_a_request_of_a_phase_that_is_over_is_dropped():
    slot = running(phase=1)
    slot.drops(asked("RESTART", phase=0))
    slot.send(ended("simulation", 1))
    slot.drops(asked("STOP_PHASE", phase=1))
    slot.drops(asked("RESTART", phase=1, incarnation=2))
