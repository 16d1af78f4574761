"""A pause of a user, and its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from states import Pristine, Running, Starting, Stopping
from states.effects import BeginPhase, EndRun, PausePart, StopConductor, StopPart, Wake
from tests.states.state_scenes import (
    LAKE,
    NAMES,
    PLAN,
    SIMULATION,
    TASKS,
    Slot,
    abort,
    asked,
    assigned,
    begin,
    ended,
    exited,
    finalizing,
    go_on,
    kinds,
    passed,
    pause,
    ready,
    removed,
    running,
    stalled,
    starting,
    stopping,
)

LIMITED = replace(PLAN, wall_clock=900)


def paused(part, *, paused=True, phase=1):
    return PausePart(phase=phase, part=part, conductor=part, incarnation=1, paused=paused)


def test_all_parts_of_the_phase_are_paused_and_go_on():
    slot = running(phase=1)
    assert slot.send(pause(at=5)) == [paused("simulation"), paused("tasks")]
    assert slot.state.waits_for == "`governor continue r1` (paused: a guest)"
    assert slot.refuses(pause()) == "it is paused already"
    assert slot.send(go_on(at=9)) == [paused("simulation", paused=False), paused("tasks", paused=False)]
    assert slot.state == replace(running(phase=1).state, counted_from=4)
    assert slot.refuses(go_on()) == "it is not paused"


def test_what_runs_ends_and_the_next_phase_waits():
    slot = running()
    slot.send(pause())
    sent = slot.send(ended("simulation"))
    assert sent[-1] == BeginPhase(phase=1, name="both")
    assert (slot.state.phase, slot.state.unbegun) == (1, {"simulation", "tasks"})
    assert slot.send(go_on()) == [begin("simulation", 1), begin("tasks", 1)]
    assert slot.state.unbegun == frozenset()


def test_a_run_that_is_paused_while_it_starts_begins_nothing():
    slot = starting()
    assert slot.send(pause()) == []
    assert slot.state.waits_for == "`governor continue r1` (paused: a guest)"
    sent = slot.send_all(*map(ready, NAMES))
    assert sent == [BeginPhase(phase=0, name="train")]
    assert slot.send(go_on()) == [begin("simulation", 0)]


def test_a_pause_that_ends_while_the_run_starts_is_over():
    slot = starting()
    slot.send(pause())
    assert slot.send(go_on()) == []
    assert isinstance(slot.state, Starting)
    assert slot.send_all(*map(ready, NAMES))[-1] == begin("simulation", 0)


def test_a_conductor_that_dies_meanwhile_is_replaced_and_waits():
    slot = running(phase=1)
    slot.send_all(pause(), exited(TASKS))
    assert slot.send(ready(TASKS, 2)) == []
    assert slot.send(go_on()) == [paused("simulation", paused=False), begin("tasks", 1, 2)]


def test_a_part_whose_conductor_is_on_its_way_back_begins_when_it_is_ready():
    slot = running(phase=1)
    slot.send_all(pause(), exited(TASKS))
    assert slot.send(go_on()) == [paused("simulation", paused=False)]
    assert slot.send(ready(TASKS, 2)) == [begin("tasks", 1, 2)]


def test_the_clock_stands_still():
    slot = running(LIMITED, at=100)
    slot.send(pause(at=300))
    assert "stands still" in slot.drops(passed("wall_clock", at=1000))
    assert Wake(name="wall_clock", at=1700) in slot.send(go_on(at=1000))
    slot.send(pause(at=1100))
    assert Wake(name="wall_clock", at=1800) in slot.send(go_on(at=1200))
    assert isinstance(slot.state, Running)
    slot.send(passed("wall_clock", at=1800))
    assert slot.state.name == "finalizing"


def test_the_clock_stands_still_from_start_to_the_next_phase():
    slot = starting(LIMITED, at=100)
    slot.send(pause(at=200))
    slot.send_all(*map(ready, NAMES))
    assert Wake(name="wall_clock", at=1200) in slot.send(go_on(at=400))
    assert slot.send(ended("simulation")) != []
    assert slot.state.time_up == 1200


def test_a_timer_that_was_under_way_when_the_clock_was_set_back_means_nothing():
    slot = running(LIMITED, at=0)
    slot.send(pause(at=300))
    slot.send(go_on(at=899.99))
    assert "set back" in slot.drops(passed("wall_clock", at=900))
    slot.send(passed("wall_clock", at=1499.99))
    assert slot.state.name == "finalizing"


@pytest.mark.parametrize("policy", ["report", "restart", "fail"])
def test_a_stall_that_was_found_when_the_run_was_paused_means_nothing(policy):
    slot = running(replace(PLAN, stall_timeout=600, on_stall=policy))
    slot.send(pause())
    assert slot.drops(stalled()) == "it is paused"
    slot.send(go_on())
    slot.send(stalled())


def test_a_pause_ends_a_stall():
    slot = running(replace(PLAN, stall_timeout=600))
    slot.send_all(stalled(), pause())
    assert slot.state.stalled is None


def test_parts_that_have_not_begun_are_not_told_to_stop():
    slot = running()
    slot.send_all(pause(), ended("simulation"))
    assert StopPart not in kinds(slot.send(abort()))
    assert slot.state.open == frozenset()


def test_it_ends_the_pause_of_a_condition_too():
    slot = running(phase=1)
    slot.send(asked("PAUSE", phase=1))
    assert "the end of a pause (until[0]" in slot.state.waits_for
    told = slot.send(go_on())
    assert told == [replace(paused(part, paused=False), ends_flow=True) for part in ("simulation", "tasks")]
    assert slot.state.paused == ""


def test_one_that_is_on_its_way_is_not_ended_by_a_command_that_does_not_know_it():
    slot = running(phase=1)
    slot.send(pause())
    assert slot.send(go_on())[0] == paused("simulation", paused=False)  # `ends_flow` is false
    slot.send(asked("PAUSE", phase=1))
    assert slot.state.paused


def test_tasks_that_were_stopped_before_they_could_begin_have_ended():
    slot = running(phase=1)
    slot.send_all(asked("SHUTDOWN", phase=1), pause(), exited(TASKS), ended("simulation", 1))
    assert slot.send(ready(TASKS, 2)) == []
    slot.send(go_on())
    assert (slot.state.name, slot.state.outcome) == ("finalizing", "finished")


def test_a_hard_pause_interrupts_the_run_and_leaves_the_slot_free():
    slot = running(phase=1)
    sent = slot.send(pause(hard=True))
    assert kinds(sent).count(StopConductor) == len(NAMES)
    assert slot.cause == "paused: a guest"
    slot.send_all(*(exited(name, code=0) for name in NAMES))
    assert slot.send(removed()) == [EndRun(outcome=None, reason="paused: a guest")]
    assert slot.state == Pristine()


def test_a_hard_pause_follows_a_soft_one():
    slot = running(phase=1)
    slot.send(pause("first"))
    slot.send(pause("second", hard=True))
    assert isinstance(slot.state, Stopping)
    assert slot.state.reason == "paused: first"


def test_a_hard_pause_of_a_run_that_starts():
    slot = Slot()
    slot.send_all(assigned(), pause("", hard=True))
    assert (slot.state.name, slot.cause) == ("stopping", "paused")


def test_a_paused_run_can_be_aborted():
    slot = running()
    slot.send_all(pause(), abort())
    assert slot.state.outcome == "aborted"


@pytest.mark.parametrize("slot", [Slot(), finalizing(), stopping()], ids=["none", "finalizing", "stopping"])
def test_a_run_that_is_not_at_work_refuses_both(slot):
    assert slot.refuses(pause())
    assert slot.refuses(go_on())


def test_a_conductor_of_no_open_part_is_not_told():
    slot = running()
    assert [each.conductor for each in slot.send(pause())] == [SIMULATION]
    slot.send(exited(LAKE))
    assert slot.send(ready(LAKE, 2)) == []
    assert [each.conductor for each in slot.send(go_on())] == [SIMULATION]
