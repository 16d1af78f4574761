"""The exit of a forkserver kills all conductors: it is one incident, and costs one restart."""

from __future__ import annotations

from dataclasses import replace

from states.effects import StartConductor
from states.running import Running
from states.starting import Starting
from tests.states.state_scenes import LAKE, PLAN, SIMULATION, TASKS, exited, running, starting

ALL = (LAKE, SIMULATION, TASKS)


def orphaned(name, incarnation=1, *, forkserver=70):
    reason = f"its forkserver (pid {forkserver}) died"
    return replace(exited(name, incarnation, reason=reason), forkserver=forkserver)


def restarted(effects):
    return [(e.conductor, e.incarnation) for e in effects if isinstance(e, StartConductor)]


def test_all_of_them_are_started_again_for_one_restart():
    slot = running(replace(PLAN, restarts=1))
    effects = slot.send_all(*map(orphaned, ALL))
    assert isinstance(slot.state, Running)
    assert slot.state.conductors.restarts_left == 0
    assert restarted(effects) == [(name, 2) for name in ALL]


def test_an_exit_for_another_reason_costs_one_more():
    slot = running(replace(PLAN, restarts=2))
    slot.send_all(orphaned(LAKE), exited(TASKS), orphaned(SIMULATION))
    assert isinstance(slot.state, Running)
    assert slot.state.conductors.restarts_left == 0


def test_each_forkserver_costs_one_in_whatever_order_its_conductors_are_seen_dead():
    slot = starting(replace(PLAN, restarts=2))
    slot.send_all(
        orphaned(LAKE), orphaned(LAKE, 2, forkserver=71), orphaned(TASKS), orphaned(SIMULATION, forkserver=71)
    )
    assert isinstance(slot.state, Starting)
    assert slot.state.conductors.restarts_left == 0
    assert slot.state.conductors.find(LAKE).incarnation == 3


def test_beyond_the_budget_the_reason_names_the_forkserver():
    slot = running(replace(PLAN, restarts=1), phase=2)
    slot.send_all(*map(orphaned, ALL))
    slot.send(orphaned(LAKE, 2, forkserver=71))
    assert slot.cause == (
        "conductor environment.lake was killed by SIGKILL: its forkserver (pid 71) died"
        " (the budget of 1 conductor restarts is used up)"
    )
