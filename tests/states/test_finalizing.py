from __future__ import annotations

from dataclasses import replace

import pytest

from states import Finalizing, Stopping
from states.effects import StopConductor, Wake, WriteResult
from tests.states.state_scenes import (
    LAKE,
    PLAN,
    SIMULATION,
    TASKS,
    abort,
    assigned,
    closing,
    ended,
    exited,
    failed_report,
    finalizing,
    not_taken,
    not_written,
    passed,
    ready,
    running,
    silent,
    started,
    stop,
    stuck,
    written,
)

FINISHED = WriteResult(outcome="finished", reason="")
ABORTED = WriteResult(outcome="aborted", reason="enough")
LATE = "finalizing took longer than 40 s (deadlines.finalize)"


def first_rungs(effects):
    return {effect.conductor: effect.first for effect in effects if isinstance(effect, StopConductor)}


# -- closing what is at work -----------------------------------------------------------------------------------


def test_the_result_is_written_when_the_last_open_part_has_stopped():
    slot = closing()
    assert slot.send(ended("tasks", 1, end="stopped")) == []
    assert slot.state.waits_for == "simulation of phase both to stop"
    assert slot.send(ended("simulation", 1, end="stopped")) == [ABORTED]
    assert slot.state.waits_for == "the result to be durable"


def test_a_part_stops_once_and_in_its_own_phase():
    slot = closing()
    slot.drops(ended("tasks", 0))
    slot.send(ended("tasks", 1))
    slot.drops(ended("tasks", 1))


def test_a_part_that_ends_badly_meanwhile_does_not_change_the_outcome():
    slot = closing()
    slot.send(ended("tasks", 1))
    assert slot.send(ended("simulation", 1, failures=3, first="x")) == [ABORTED]


def test_an_exit_closes_the_part_and_no_conductor_is_started_again():
    slot = closing()
    assert slot.send(exited(LAKE)) == []
    assert slot.send(exited(TASKS)) == []
    assert slot.send(exited(SIMULATION)) == [ABORTED]
    slot.drops(exited(SIMULATION))


def test_one_that_would_not_die_closes_its_part_too():
    slot = closing()
    slot.send(ended("tasks", 1))
    assert slot.send(stuck(SIMULATION, pid=7)) == [ABORTED]
    assert slot.state.conductors.stuck_pids == (7,)
    slot.send(exited(SIMULATION))
    assert slot.state.conductors.stuck_pids == (), "it died after all"


def test_a_part_that_does_not_stop_is_not_waited_for_past_the_deadline():
    slot = closing()
    slot.send(ended("tasks", 1))
    assert slot.send(passed("close", at=10)) == [ABORTED]
    slot.drops(passed("close", at=10))
    slot.drops(ended("simulation", 1))


def test_parts_get_half_of_the_shorter_deadline_to_stop():
    for finalize, stop_ in ((40, 20), (10, 20)):
        deadlines = replace(PLAN.deadlines, finalize=finalize, stop=stop_)
        slot = running(replace(PLAN, deadlines=deadlines))
        assert slot.send(abort(at=100))[-1] == Wake(name="close", at=100 + min(finalize, stop_) / 2)


def test_a_conductor_that_is_on_its_way_back_has_nothing_to_stop():
    slot = running()
    slot.send(exited(SIMULATION))
    assert slot.send(abort())[-1] == ABORTED
    assert slot.send(started(SIMULATION, 2, pid=7)) == []
    assert slot.send(ready(SIMULATION, 2)) == []
    assert slot.state.conductors.is_ready(SIMULATION)


def test_a_stuck_conductor_that_says_ready_late_is_stuck_still():
    slot = running()
    slot.send_all(exited(LAKE), passed("restart", LAKE, 2), stuck(LAKE, 2, pid=7))
    slot.drops(ready(LAKE, 2))
    assert slot.state.conductors.stuck_pids == (7,)


# -- making it durable -----------------------------------------------------------------------------------------


def test_a_durable_result_stops_the_conductors():
    slot = finalizing()
    assert slot.send(written("finished", at=50)) == [
        Wake(name="stop", at=70),
        StopConductor(conductor=LAKE, incarnation=1, first="message"),
        StopConductor(conductor=SIMULATION, incarnation=1, first="message"),
        StopConductor(conductor=TASKS, incarnation=1, first="message"),
    ]
    assert isinstance(slot.state, Stopping)
    assert (slot.state.outcome, slot.state.shutdown) == ("finished", False)


def test_the_outcome_that_is_durable_counts():
    slot = finalizing()
    slot.send(written("aborted"))
    assert slot.state.outcome == "aborted"


def test_a_result_that_could_not_be_written_is_tried_again():
    slot = finalizing()
    assert slot.send(not_written(at=10)) == [Wake(name="retry", at=11)]
    assert slot.send(passed("retry", at=11)) == [FINISHED]
    assert slot.send(not_written(at=12)) == [Wake(name="retry", at=13)]
    assert isinstance(slot.state, Finalizing)


@pytest.mark.parametrize("first", ["stop", "failure"])
def test_a_daemon_that_stops_does_not_try_again_the_next_start_does(first):
    slot = finalizing()
    slot.send_all(*((stop(), not_written()) if first == "stop" else (not_written(), stop(), not_written())))
    assert isinstance(slot.state, Stopping)
    assert (slot.state.outcome, slot.state.shutdown) == (None, True)
    assert "the result is not durable yet" in slot.state.reason


def test_past_its_deadline_the_run_is_failed_and_gets_the_deadline_once_more():
    slot = finalizing()
    assert slot.send(passed("finalize", at=40)) == [
        WriteResult(outcome="failed", reason=LATE),
        Wake(name="finalize", at=80),
    ]
    slot.send(written("failed"))
    assert (slot.state.outcome, slot.state.reason) == ("failed", LATE)


def test_the_deadline_adds_to_the_reason_and_closes_what_is_open():
    slot = closing()
    assert slot.send(passed("finalize", at=40))[0] == WriteResult(outcome="failed", reason=f"enough; {LATE}")
    assert slot.state.open == frozenset()


def test_the_second_time_it_is_interrupted_without_an_outcome():
    slot = finalizing()
    slot.send(passed("finalize", at=40))
    effects = slot.send(passed("finalize", at=80))
    assert effects[0] == Wake(name="stop", at=100)
    assert set(first_rungs(effects)) == {LAKE, SIMULATION, TASKS}
    assert isinstance(slot.state, Stopping)
    assert slot.state.outcome is None
    assert slot.state.reason == f"{LATE}; the result was not durable in time"
    assert not slot.state.shutdown


def test_a_write_that_was_under_way_at_the_deadline_may_still_win():
    slot = finalizing()
    slot.send_all(passed("finalize"), written("finished"))
    assert slot.state.outcome == "finished"


@pytest.mark.parametrize("name", ["start", "restart", "wall_clock", "close", "stop"])
def test_no_other_deadline_means_anything(name):
    finalizing().drops(passed(name, LAKE, 1))


def test_no_retry_while_parts_are_open():
    closing().drops(passed("retry"))


def test_a_silent_conductor_that_was_to_stop_its_part_is_killed_and_its_part_has_stopped():
    slot = closing()
    assert slot.send(silent(TASKS)) == [StopConductor(conductor=TASKS, incarnation=1, first="SIGKILL")]
    assert slot.send(exited(TASKS)) == []
    assert slot.state.open == {"simulation"}
    slot.drops(silent(TASKS))


# -- commands and stops ----------------------------------------------------------------------------------------


def test_a_stop_waits_for_the_result_but_not_for_what_is_at_work():
    slot = closing()
    assert slot.send(stop()) == [ABORTED]
    effects = slot.send(written("aborted"))
    assert set(first_rungs(effects).values()) == {"message"}
    assert (slot.state.outcome, slot.state.shutdown) == ("aborted", True)


def test_a_stop_does_not_write_twice():
    slot = finalizing()
    assert slot.send_all(stop(), stop(urgent=True)) == []


@pytest.mark.parametrize("end", [[written("finished")], [passed("finalize"), passed("finalize")]])
def test_an_urgent_stop_gives_no_grace_once_the_result_is_durable_or_late(end):
    slot = finalizing()
    slot.send_all(stop(urgent=True), stop())
    assert set(first_rungs(slot.send_all(*end)).values()) == {"SIGKILL"}
    assert slot.state.shutdown


def test_the_outcome_is_decided_commands_are_refused():
    slot = finalizing()
    assert slot.refuses(abort()) == "the run is finalizing already"
    assert slot.refuses(assigned()) == "run r1 is in work (finalizing)"


def test_reports_of_earlier_work_are_dropped():
    slot = finalizing()
    for event in (failed_report(LAKE, "late"), not_taken("tasks", 2), ended("tasks", 2), exited(LAKE, 0)):
        slot.drops(event)
