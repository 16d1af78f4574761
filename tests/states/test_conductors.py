from __future__ import annotations

from dataclasses import replace

import pytest

from states import Dropped, advance
from states.conductors import (
    FIRST_BACK_OFF,
    LONGEST_BACK_OFF,
    STEADY,
    ConductorState,
    ConductorStates,
    exit_reason,
)
from states.effects import StartConductor, StopConductor, Wake
from tests.states.state_scenes import (
    LAKE,
    PLAN,
    SIMULATION,
    TASKS,
    closing,
    exited,
    finalizing,
    ready,
    running,
    starting,
    stuck,
)


@pytest.fixture
def conductors():
    return ConductorStates.of(PLAN)


def test_all_conductors_begin_as_starting_with_all_restarts_left(conductors):
    assert [(m.name, m.kind, m.incarnation, m.standing, m.pid) for m in conductors.all] == [
        (LAKE, "environment", 1, "starting", None),
        (SIMULATION, "simulation", 1, "starting", None),
        (TASKS, "task", 1, "starting", None),
    ]
    assert conductors.restarts_left == PLAN.restarts
    assert conductors.alive == conductors.all
    assert conductors.not_ready == conductors.all


@pytest.mark.parametrize(("used", "left"), [(1, 1), (2, 0), (7, 0)])
def test_restarts_of_earlier_invocations_are_used_up(used, left):
    conductors = ConductorStates.of(replace(PLAN, restarts_used=used))
    assert conductors.restarts_left == left
    assert (conductors.gone(LAKE).restart(LAKE, at=0, within=60) is None) == (left == 0)


def test_it_is_all_ready_with_the_last_one(conductors):
    conductors = conductors.ready(LAKE, at=0).ready(SIMULATION, at=0)
    assert [each.name for each in conductors.not_ready] == [TASKS]
    assert not conductors.ready(TASKS, at=0).not_ready


def test_an_event_of_an_earlier_incarnation_or_an_unknown_conductor_concerns_none(conductors):
    assert conductors.concerned(exited(LAKE))
    assert not conductors.concerned(exited("agent.nobody"))
    assert not conductors.concerned(exited(LAKE, 0))
    assert not conductors.concerned(ready(LAKE, 2))
    assert not conductors.gone(LAKE).concerned(exited(LAKE))
    assert conductors.stuck(LAKE, 7).concerned(exited(LAKE)), "a stuck one may still die"


@pytest.mark.parametrize("slot", [starting(), running(), closing()], ids=lambda slot: slot.state.name)
def test_only_a_starting_conductor_is_awaited(slot):
    slot.send_all(*(ready(LAKE) for _ in range(slot.state.name == "starting")))
    assert isinstance(advance(slot.state, ready(LAKE)), Dropped)


def test_a_conductor_that_could_not_be_killed_is_not_awaited():
    state = finalizing().state
    state = replace(state, conductors=state.conductors.stuck(LAKE, 7))
    assert isinstance(advance(state, ready(LAKE)), Dropped)


def test_a_restart_takes_from_the_budget_and_has_a_deadline(conductors):
    conductors = conductors.started(LAKE, 7).with_error(LAKE, "boom").gone(LAKE)
    conductors, effects = conductors.restart(LAKE, at=100, within=60)
    assert effects == (
        StartConductor(conductor=LAKE, kind="environment", incarnation=2, delay=FIRST_BACK_OFF),
        Wake(name="restart", at=160 + FIRST_BACK_OFF, conductor=LAKE, incarnation=2),
    )
    again = conductors.find(LAKE)
    assert (again.incarnation, again.standing, again.pid, again.last_error) == (2, "starting", None, "")
    assert conductors.restarts_left == PLAN.restarts - 1


def test_the_back_off_doubles_for_each_restart_of_the_same_conductor_up_to_a_limit():
    conductors = ConductorStates.of(replace(PLAN, restarts=1000))
    delays = []
    for _ in range(1000):
        conductors, (start, wake) = conductors.gone(LAKE).restart(LAKE, at=0, within=60)
        assert wake.at == start.delay + 60
        delays.append(start.delay)
    assert delays[:8] == [0.25, 0.5, 1, 2, 4, 8, 16, LONGEST_BACK_OFF]
    assert max(delays) == LONGEST_BACK_OFF
    assert conductors.restart(LAKE, at=0, within=60) is None


def test_the_back_off_begins_anew_after_a_steady_life():
    conductors, at, delays = ConductorStates.of(replace(PLAN, restarts=1000)), 1000.0, []
    for lived in (0, 0, STEADY - 0.01, STEADY, 0, STEADY - 0.01, -2 * STEADY):
        if lived >= 0:  # else it was never ready
            conductors = conductors.ready(LAKE, at=at)
        at += abs(lived)
        conductors, (start, _) = conductors.gone(LAKE).restart(LAKE, at=at, within=60)
        delays.append(start.delay)
    assert delays == [0.25, 0.5, 1, 0.25, 0.5, 1, 2]


def test_incarnations_go_on_where_an_earlier_invocation_ended_and_the_back_off_begins_anew():
    conductors = ConductorStates.of(replace(PLAN, incarnations=((LAKE, 7), ("agent.gone", 2))))
    assert [conductor.incarnation for conductor in conductors.all] == [8, 1, 1]
    conductors, (start, _) = conductors.gone(LAKE).restart(LAKE, at=0, within=60)
    assert (start.incarnation, start.delay) == (9, FIRST_BACK_OFF)


def test_one_budget_serves_all_but_each_has_its_own_back_off(conductors):
    conductors, (first, _) = conductors.restart(LAKE, at=0, within=60)
    conductors, (second, _) = conductors.restart(TASKS, at=0, within=60)
    assert (first.delay, second.delay) == (FIRST_BACK_OFF, FIRST_BACK_OFF)
    assert conductors.restart(LAKE, at=0, within=60) is None


def test_the_kill_ladder_begins_with_a_message_for_conductors_that_are_ready(conductors):
    conductors = conductors.ready(LAKE, at=0).gone(TASKS)
    assert conductors.stop() == (
        StopConductor(conductor=LAKE, incarnation=1, first="message"),
        StopConductor(conductor=SIMULATION, incarnation=1, first="SIGTERM"),
    )
    assert {effect.first for effect in conductors.stop(urgent=True)} == {"SIGKILL"}


def test_a_stuck_conductor_is_not_stopped_again_and_its_pid_is_known(conductors):
    conductors = conductors.stuck(LAKE, 7)
    assert conductors.stuck_pids == (7,)
    assert LAKE not in {effect.conductor for effect in conductors.stop()}
    assert conductors.gone(LAKE).stuck_pids == ()
    assert conductors.stuck(TASKS, None).stuck_pids == (7,), "what has no pid can't be named"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            exited(TASKS, code=0),
            "conductor tasks exited with code 0, though nothing had stopped it (SIGTERM does that)",
        ),
        (exited(TASKS, code=1), "conductor tasks exited with code 1"),
        (exited(TASKS, code=-9), "conductor tasks was killed by SIGKILL"),
        (exited(TASKS, code=-99), "conductor tasks was killed by signal 99"),
        (
            exited(TASKS, code=None, reason="no memory"),
            "conductor tasks could not be started: no memory",
        ),
    ],
)
def test_an_obituary_tells_how_it_died(conductors, event, line):
    assert exit_reason(conductors.find(TASKS), event) == line


def test_last_words_say_more_than_the_reason_of_the_exit(conductors):
    conductor = conductors.with_error(TASKS, "ImportError: torch").find(TASKS)
    assert (
        exit_reason(conductor, exited(TASKS, code=1, reason="?"))
        == "conductor tasks exited with code 1: ImportError: torch"
    )
    service = ConductorState(
        name="service.model", kind="service", last_error="its program ended: exit code 0"
    )
    assert (
        exit_reason(service, exited("service.model", code=1))
        == "service.model: its program ended: exit code 0"
    )


def test_conductor_states_are_never_changed_in_place(conductors):
    before = ConductorStates.of(PLAN)
    conductors.started(LAKE, 7)
    conductors.ready(LAKE, at=0)
    conductors.with_error(LAKE, "boom")
    conductors.gone(LAKE)
    conductors.stuck(LAKE, 7)
    conductors.restart(LAKE, at=0, within=1)
    assert conductors == before
    assert conductors.concerned(stuck(LAKE))
