from __future__ import annotations

from dataclasses import replace

import pytest

from states import Pristine, Starting
from states.effects import StartConductor, Wake
from tests.states.state_scenes import (
    LAKE,
    PLAN,
    SIMULATION,
    TASKS,
    Slot,
    abort,
    assigned,
    exited,
    gone_at_last,
    stop,
    stopping,
)


def test_it_waits_for_a_run():
    slot = Slot()
    assert slot.state == Pristine()
    assert slot.state.run is None
    assert slot.state.waits_for == "a run"


def test_a_run_is_taken_and_all_conductors_are_started_side_by_side_under_one_deadline():
    slot = Slot()
    assert slot.send(assigned(at=100)) == [
        Wake(name="start", at=160),
        StartConductor(conductor=LAKE, kind="environment", incarnation=1),
        StartConductor(conductor=SIMULATION, kind="simulation", incarnation=1),
        StartConductor(conductor=TASKS, kind="task", incarnation=1),
    ]
    assert isinstance(slot.state, Starting)
    assert slot.state.run is PLAN
    assert slot.cause == "run lake assigned"


@pytest.mark.parametrize(("worked", "left"), [(0.0, 900), (899.5, 0.5), (5000.0, -4100)])
def test_the_wall_clock_counts_the_time_of_earlier_invocations(worked, left):
    effects = Slot().send(assigned(replace(PLAN, wall_clock=900, worked=worked), at=100))
    assert Wake(name="wall_clock", at=100 + left) in effects


def test_the_wall_clock_of_a_run_begins_with_its_assignment():
    assert Slot().send(assigned(replace(PLAN, wall_clock=900), at=100))[:2] == [
        Wake(name="start", at=160),
        Wake(name="wall_clock", at=1000),
    ]


def test_shut_down_it_takes_no_run():
    slot = Slot()
    assert slot.send(stop("going down")) == []
    assert slot.state == Pristine(shutdown=True)
    assert slot.cause == "going down"
    assert slot.refuses(assigned()) == "it is shut down"
    assert slot.state.waits_for == "nothing: shut down"


def test_a_stop_that_names_a_run_that_has_just_ended_is_a_stop_all_the_same():
    slot = Slot()
    slot.send(stop(run="r0"))
    assert slot.state.shutdown


def test_quarantined_it_takes_no_run_and_names_the_pids():
    slot = Slot(Pristine(stuck=(7, 8)))
    assert slot.refuses(assigned()) == "it is quarantined: pid 7, 8 could not be killed, and is not gone yet"
    assert "pid 7, 8" in slot.state.waits_for
    slot.send(stop())
    assert slot.state == Pristine(shutdown=True, stuck=(7, 8))


def test_quarantine_is_over_when_the_last_of_them_is_gone():
    slot = Slot(Pristine(stuck=(7, 8)))
    assert slot.send(gone_at_last(8, 9)) == []
    assert slot.state == Pristine(stuck=(7,))
    slot.drops(gone_at_last(8))
    slot.send(gone_at_last(7))
    assert slot.state == Pristine()
    slot.send(assigned())
    assert slot.state.name == "starting"


def test_there_is_nothing_to_abort():
    assert Slot().refuses(abort()) == "no run is in work"


def test_news_of_an_earlier_run_is_dropped():
    Slot().drops(exited(LAKE, run="r0"))


def test_a_run_in_work_keeps_the_slot():
    assert Slot(stopping().state).refuses(assigned(replace(PLAN, uid="r2"))) == "run r1 is in work (stopping)"
