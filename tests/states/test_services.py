"""While a service is away nothing further of a phase begins; when it is back, all goes on."""

from __future__ import annotations

from dataclasses import replace

from states import Finalizing, Starting
from states.effects import BeginPhase, PausePart, StartConductor, Wake
from states.plan import ConductorPlan
from tests.states.state_scenes import (
    DATA,
    MODEL,
    PLAN,
    TASKS,
    asked,
    begin,
    ended,
    exited,
    go_on,
    pause,
    ready,
    running,
    starting,
)

SERVICES = tuple(ConductorPlan(name=name, kind="service") for name in (MODEL, DATA))
SERVED = replace(PLAN, conductors=(*SERVICES, *PLAN.conductors), restarts=4)


def paused(part, *, paused=True, phase=1, ends_flow=False):
    return PausePart(
        phase=phase, part=part, conductor=part, incarnation=1, paused=paused, ends_flow=ends_flow
    )


def restarted(name, incarnation=2, *, delay=0.25, within=60.0):
    return [
        StartConductor(conductor=name, kind="service", incarnation=incarnation, delay=delay),
        Wake(name="restart", at=delay + within, conductor=name, incarnation=incarnation),
    ]


def test_a_run_begins_when_they_are_ready():
    slot = starting(SERVED)
    slot.send_all(*(ready(each.name) for each in SERVED.conductors[1:]))
    assert isinstance(slot.state, Starting)
    assert slot.state.waits_for == "conductors to be ready: service.model"
    assert slot.send(ready(MODEL)) == [BeginPhase(phase=0, name="train"), begin("simulation", 0)]


def test_parts_pause_while_one_is_away():
    slot = running(SERVED, phase=1)
    assert slot.send(exited(MODEL)) == [*restarted(MODEL), paused("simulation"), paused("tasks")]
    assert slot.state.waits_for == "phase both: conductor service.model to be ready again"
    assert slot.send(exited(DATA)) == restarted(DATA)
    assert slot.send(ready(MODEL, 2)) == []
    assert slot.send(ready(DATA, 2)) == [paused("simulation", paused=False), paused("tasks", paused=False)]


def test_the_next_phase_waits_for_it():
    slot = running(SERVED)
    slot.send(exited(MODEL))
    assert slot.send(ended("simulation"))[-1] == BeginPhase(phase=1, name="both")
    assert slot.send(ready(MODEL, 2)) == [begin("simulation", 1), begin("tasks", 1)]


def test_a_part_whose_conductor_died_meanwhile_begins_again_with_it():
    slot = running(SERVED, phase=1)
    slot.send_all(exited(MODEL), exited(TASKS))
    assert slot.send(ready(TASKS, 2)) == []
    assert slot.send(ready(MODEL, 2)) == [paused("simulation", paused=False), begin("tasks", 1, 2)]


def test_a_pause_of_a_user_outlasts_it_and_does_not_end_before_it():
    slot = running(SERVED, phase=1)
    slot.send_all(exited(MODEL), pause())
    assert slot.send(ready(MODEL, 2)) == []
    assert slot.send(go_on()) == [paused("simulation", paused=False), paused("tasks", paused=False)]
    slot.send_all(pause(), exited(MODEL, 2))
    assert slot.send(go_on()) == []
    assert slot.send(ready(MODEL, 3)) == [
        paused("simulation", paused=False),
        paused("tasks", paused=False),
    ]


def test_episodes_that_a_condition_has_paused_stay_so():
    slot = running(SERVED, phase=1)
    slot.send_all(asked("PAUSE", phase=1), exited(MODEL))
    assert slot.send(ready(MODEL, 2)) == [paused("simulation", paused=False), paused("tasks", paused=False)]
    assert slot.state.paused
    assert slot.send(go_on())[0] == paused("simulation", paused=False, ends_flow=True)


def test_a_user_ends_the_pause_of_a_condition_while_a_service_is_away():
    slot = running(SERVED, phase=1)
    slot.send_all(asked("PAUSE", phase=1), exited(MODEL))
    assert slot.send(go_on())[0] == paused("simulation", ends_flow=True)
    assert slot.send(ready(MODEL, 2))[0] == paused("simulation", paused=False)


def test_beyond_the_budget_the_run_fails():
    slot = running(replace(SERVED, restarts=0), phase=1)
    slot.send(exited(MODEL, code=1, reason="its program ended: exit code 3"))
    assert isinstance(slot.state, Finalizing)
    assert slot.state.reason == ("conductor service.model exited with code 1: its program ended: exit code 3")
