"""Running: conductors that exit, are silent, or make no progress."""

from __future__ import annotations

from dataclasses import replace

from states import Finalizing
from states.effects import (
    BeginPhase,
    EndPhase,
    StartConductor,
    StopConductor,
    StopPart,
    Wake,
    WriteResult,
)
from tests.states.state_scenes import (
    LAKE,
    PLAN,
    SIMULATION,
    TASKS,
    begin,
    ended,
    exited,
    failed_report,
    kinds,
    moved,
    not_taken,
    passed,
    ready,
    running,
    silent,
    stalled,
    started,
    stuck,
)

# -- deaths ----------------------------------------------------------------------------------------------------


def test_a_dead_conductor_is_replaced_and_its_open_part_begun_again():
    slot = running(phase=1)
    assert slot.send(exited(TASKS, at=50)) == [
        StartConductor(conductor=TASKS, kind="task", incarnation=2, delay=0.25),
        Wake(name="restart", at=110.25, conductor=TASKS, incarnation=2),
    ]
    assert slot.state.waits_for == "phase both: conductor tasks to be ready again"
    assert slot.send(started(TASKS, 2)) == []
    assert slot.send(ready(TASKS, 2)) == [begin("tasks", 1, 2)]
    slot.drops(ready(TASKS, 2))


def test_what_had_ended_is_not_begun_again():
    slot = running(phase=1)
    slot.send_all(ended("tasks", 1), exited(TASKS))
    assert slot.send(ready(TASKS, 2)) == []


def test_a_phase_may_begin_without_a_conductor_that_is_on_its_way_back():
    slot = running()
    slot.send(exited(TASKS))
    assert slot.send(ended("simulation", 0))[1:] == [
        BeginPhase(phase=1, name="both"),
        begin("simulation", 1),
    ]
    assert slot.send(ready(TASKS, 2)) == [begin("tasks", 1, 2)]


def test_an_end_reported_by_a_conductor_that_exited_meanwhile_counts():
    slot = running()
    slot.send(exited(SIMULATION))
    assert BeginPhase(phase=1, name="both") in slot.send(ended("simulation", 0))


def test_beyond_the_budget_the_run_fails_and_what_is_still_at_work_is_asked_to_stop():
    slot = running(phase=1)
    slot.send_all(exited(TASKS, 1), exited(TASKS, 2), failed_report(TASKS, "LocalRayletDiedError", 3))
    reason = (
        "conductor tasks exited with code 70: LocalRayletDiedError"
        " (the budget of 2 conductor restarts is used up)"
    )
    assert slot.send(exited(TASKS, 3, code=70, at=10)) == [
        Wake(name="finalize", at=50),
        EndPhase(phase=1, name="both", end="failed"),
        StopPart(phase=1, part="simulation", conductor=SIMULATION, incarnation=1, reason=reason),
        Wake(name="close", at=20),
    ]
    assert slot.state.open == {"simulation"}, "nobody is there to stop the tasks"
    assert slot.state.waits_for == "simulation of phase both to stop"


def test_a_restarted_conductor_that_is_not_ready_in_time_is_killed():
    slot = running()
    slot.send(exited(LAKE))
    assert slot.send(passed("restart", LAKE, 2)) == [
        StopConductor(conductor=LAKE, incarnation=2, first="SIGKILL")
    ]
    assert kinds(slot.send(exited(LAKE, 2))) == [StartConductor, Wake]
    slot.send(ready(LAKE, 3))
    slot.drops(passed("restart", LAKE, 3))


def test_a_silent_conductor_is_killed_and_replaced_as_a_dead_one_is():
    slot = running()
    assert slot.send(silent(SIMULATION, seconds=12.3)) == [
        StopConductor(conductor=SIMULATION, incarnation=1, first="SIGKILL")
    ]
    assert kinds(slot.send(exited(SIMULATION))) == [StartConductor, Wake]
    slot.drops(silent(SIMULATION))
    assert "deadline of its own" in slot.drops(silent(SIMULATION, 2))
    assert slot.send(ready(SIMULATION, 2)) == [begin("simulation", 0, 2)]


def test_its_obituary_tells_of_the_silence():
    slot = running(replace(PLAN, restarts=0))
    slot.send(silent(LAKE, seconds=12.3))
    slot.send(exited(LAKE))
    assert (
        slot.state.reason
        == "conductor environment.lake was killed by SIGKILL: silent for 12 s (deadlines.liveness)"
    )


# -- no progress -----------------------------------------------------------------------------------------------

STALLS = replace(PLAN, stall_timeout=600)


def test_a_run_that_stalls_continues_with_on_stall_report():
    slot = running(STALLS)
    assert slot.send(stalled(since=100, at=700)) == []
    assert slot.state.stalled == 100
    assert slot.send(moved(at=800)) == []
    assert slot.state.stalled is None
    slot.drops(moved(at=900))


def test_a_run_that_stalls_fails_if_that_is_its_policy():
    slot = running(replace(STALLS, on_stall="fail"), phase=1)
    slot.send(exited(TASKS, at=100))
    slot.send(stalled(since=100, at=700))
    assert isinstance(slot.state, Finalizing)
    assert slot.state.outcome == "failed"
    assert slot.state.reason == (
        "no progress for stall_timeout of 600 s in phase both, which waited for conductor tasks to be ready again"
    )


def test_a_run_that_stalls_has_its_conductors_replaced_if_that_is_its_policy():
    slot = running(replace(STALLS, on_stall="restart", restarts=3))
    slot.send(exited(LAKE))
    assert slot.send(stalled(since=100, at=700)) == [
        StopConductor(conductor=SIMULATION, incarnation=1, first="SIGKILL"),
        StopConductor(conductor=TASKS, incarnation=1, first="SIGKILL"),
    ]
    slot.send_all(exited(SIMULATION), exited(TASKS))
    assert slot.state.conductors.restarts_left == 0
    slot.send(ready(LAKE, 2))
    slot.send(stalled(since=800, at=1400))
    slot.send(exited(LAKE, 2))
    assert slot.state.reason == (
        "conductor environment.lake was killed by SIGKILL: no progress for stall_timeout of 600 s"
        " (the budget of 3 conductor restarts is used up)"
    )


def test_a_stall_is_that_of_its_phase():
    slot = running(STALLS)
    slot.send(stalled())
    slot.send(ended("simulation", 0))
    assert slot.state.stalled is None


def test_without_a_stall_timeout_nothing_stalls():
    running().drops(stalled())


def test_a_conductor_that_does_not_take_its_part_is_replaced():
    slot = running()
    assert slot.send(not_taken("simulation", reason="no answer in 10 s")) == [
        StopConductor(conductor=SIMULATION, incarnation=1, first="SIGKILL")
    ]
    assert kinds(slot.send(exited(SIMULATION))) == [StartConductor, Wake]
    assert slot.send(ready(SIMULATION, 2)) == [begin("simulation", 0, 2)]


def test_its_obituary_tells_what_it_did_not_take():
    slot = running(replace(PLAN, restarts=0))
    slot.send(not_taken("simulation", reason="no answer in 10 s"))
    assert slot.send(exited(SIMULATION))[-1] == WriteResult(
        outcome="failed",
        reason="conductor simulation was killed by SIGKILL: did not begin simulation of phase 0: no answer in 10 s",
    )


def test_a_part_that_was_not_taken_and_does_not_matter_any_more_is_dropped():
    slot = running(phase=1)
    slot.drops(not_taken("simulation", 0))
    slot.send(exited(SIMULATION))
    slot.drops(not_taken("simulation", 1))
    slot.send(ended("tasks", 1))
    slot.drops(not_taken("tasks", 1))


def test_one_that_would_not_die_ends_the_run_before_its_successor_could_meet_it():
    slot = running()
    slot.send(not_taken("simulation"))
    assert slot.send(stuck(SIMULATION, pid=7)) == [
        Wake(name="finalize", at=40),
        EndPhase(phase=0, name="train", end="failed"),
        WriteResult(outcome="failed", reason="conductor simulation could not be killed: pid 7 is alive"),
    ]
    assert slot.state.conductors.stuck_pids == (7,)
