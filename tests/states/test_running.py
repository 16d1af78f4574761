from __future__ import annotations

from dataclasses import replace

import pytest

from states import Finalizing, Running, Stopping
from states.effects import (
    BeginPhase,
    EndPhase,
    StartPart,
    StopConductor,
    StopPart,
    Wake,
    WriteResult,
)
from tests.states.state_scenes import (
    ANALYSE,
    BOTH,
    LAKE,
    PLAN,
    SIMULATION,
    TASKS,
    TRAIN,
    abort,
    begin,
    ended,
    exceeded,
    exited,
    folder_lost,
    passed,
    ready,
    running,
    started,
    stop,
)

# -- phases ----------------------------------------------------------------------------------------------------


def test_phases_run_in_order_and_the_run_is_finished_after_the_last():
    slot = running()
    assert slot.state.waits_for == "phase train: simulation to end"
    assert slot.send(ended("simulation", 0, end="until_met")) == [
        EndPhase(phase=0, name="train", end="until_met"),
        BeginPhase(phase=1, name="both"),
        begin("simulation", 1),
        begin("tasks", 1),
    ]
    assert slot.cause == "phase train ended: until_met"
    assert slot.send(ended("tasks", 1, end="tasks_done")) == []
    assert slot.send(ended("simulation", 1, end="max_episodes")) == [
        EndPhase(phase=1, name="both", end="tasks_done+max_episodes"),
        BeginPhase(phase=2, name="analyse"),
        begin("tasks", 2),
    ]
    assert slot.send(ended("tasks", 2, end="tasks_done", at=90)) == [
        EndPhase(phase=2, name="analyse", end="tasks_done"),
        Wake(name="finalize", at=130),
        WriteResult(outcome="finished", reason=""),
    ]
    assert isinstance(slot.state, Finalizing)
    assert slot.cause == "phase analyse ended: tasks_done"


def test_a_part_ends_once_and_in_its_own_phase():
    slot = running(phase=1)
    slot.drops(ended("simulation", 0))
    slot.drops(ended("simulation", 2))
    slot.send(ended("simulation", 1))
    slot.drops(ended("simulation", 1))
    assert slot.state.open == {"tasks"}


def test_failures_that_the_phase_does_not_bear_end_it_with_its_other_part():
    slot = running(phase=1)
    told = ended("simulation", 1, failures=2, first="episode 3: reward is nan", at=7)
    reason = "phase both: 2 ended badly, beyond failures.at_most of 1, first episode 3: reward is nan"
    assert slot.send(replace(told, exceeded="failures.at_most of 1")) == [
        Wake(name="finalize", at=47),
        EndPhase(phase=1, name="both", end="failed"),
        StopPart(phase=1, part="tasks", conductor="tasks", incarnation=1, reason=reason),
        Wake(name="close", at=17),
    ]
    assert isinstance(slot.state, Finalizing)
    assert slot.send(ended("tasks", 1, failures=1)) == [WriteResult(outcome="failed", reason=reason)]


def test_failures_that_the_phase_bears_are_told_and_end_nothing():
    slot = running(phase=1)
    assert slot.send(replace(ended("simulation", 1, failures=2, first="x"), tolerated=True)) == []
    assert slot.send(replace(ended("tasks", 1, failures=1, first="y"), tolerated=True))[0] == EndPhase(
        phase=1, name="both", end="done+done"
    )
    assert (slot.state.phase, slot.state.first_failed) == (2, "phase both: 3 ended badly, first x")


def test_a_part_whose_failures_are_too_many_fails_the_run_also_behind_one_with_fewer():
    slot = running(phase=1)
    assert slot.send(replace(ended("simulation", 1, failures=2, first="x"), tolerated=True)) == []
    assert slot.send(ended("tasks", 1, failures=1))[-1] == WriteResult(
        outcome="failed", reason="phase both: 3 ended badly, first x"
    )


def test_failures_without_a_description_are_counted_too():
    assert running().send(ended("simulation", 0, failures=2))[-1] == WriteResult(
        outcome="failed", reason="phase train: 2 ended badly"
    )


def test_on_failure_continue_begins_the_next_phase():
    slot = running(replace(PLAN, phases=(replace(TRAIN, on_failure="continue"), BOTH)))
    assert BeginPhase(phase=1, name="both") in slot.send(ended("simulation", 0, failures=5, first="x"))
    assert (slot.state.failures, slot.state.failure) == (0, ""), "each phase counts its own"


def test_failures_of_a_last_phase_that_continues_leave_the_run_finished_and_are_its_reason():
    slot = running(phase=2)
    reason = "1 of 3 phases had failures; first: phase analyse: 5 ended badly, first x"
    assert slot.send(ended("tasks", 2, failures=5, first="x"))[-1] == WriteResult(
        outcome="finished", reason=reason
    )


def test_the_reason_of_a_finished_run_counts_the_phases_that_failed_and_names_the_first():
    phases = (replace(TRAIN, on_failure="continue"), ANALYSE, ANALYSE)
    slot = running(replace(PLAN, phases=phases))
    slot.send(ended("simulation", 0, failures=2, first="episode 1: no"))
    slot.send(ended("tasks", 1, failures=1))
    reason = "2 of 3 phases had failures; first: phase train: 2 ended badly, first episode 1: no"
    assert slot.send(ended("tasks", 2))[-1] == WriteResult(outcome="finished", reason=reason)


def test_phases_that_failed_in_an_earlier_invocation_count():
    slot = running(replace(PLAN, first_phase=2, failed=2, failure="phase train: 3 ended badly"), phase=2)
    reason = "2 of 3 phases had failures; first: phase train: 3 ended badly"
    assert slot.send(ended("tasks", 2))[-1] == WriteResult(outcome="finished", reason=reason)


# -- limits, aborts, stops -------------------------------------------------------------------------------------


def test_the_wall_clock_limit_fails_the_run():
    slot = running(replace(PLAN, wall_clock=900), phase=1)
    reason = "limit wall_clock of 900 s reached in phase both"
    assert slot.send(passed("wall_clock", at=900)) == [
        Wake(name="finalize", at=940),
        EndPhase(phase=1, name="both", end="failed"),
        StopPart(phase=1, part="simulation", conductor=SIMULATION, incarnation=1, reason=reason),
        StopPart(phase=1, part="tasks", conductor=TASKS, incarnation=1, reason=reason),
        Wake(name="close", at=910),
    ]


@pytest.mark.parametrize(
    ("limit", "value", "reached", "failed_report"),
    [
        ("episodes", 100, 103, "limit episodes of 100 exceeded in phase train: 103"),
        ("tasks", 5000, 5001, "limit tasks of 5000 exceeded in phase train: 5001"),
        ("memory", 2 * 1024**3, 2_469_606_195, "limit memory of 2 GiB exceeded in phase train: 2.3 GiB"),
        ("disk", 500_000_000, 600 * 1024**2, "limit disk of 476.84 MiB exceeded in phase train: 600 MiB"),
    ],
)
def test_a_limit_fails_the_run_and_says_what_is_allowed_and_what_was_reached(
    limit, value, reached, failed_report
):
    slot = running()
    reason = failed_report
    assert slot.send(exceeded(limit, value, reached, at=9)) == [
        Wake(name="finalize", at=49),
        EndPhase(phase=0, name="train", end="failed"),
        StopPart(phase=0, part="simulation", conductor=SIMULATION, incarnation=1, reason=reason),
        Wake(name="close", at=19),
    ]
    slot.drops(exceeded("steps", at=10))


def test_a_run_whose_folder_was_removed_has_failed_and_says_which():
    slot = running()
    reason = "the folder /s/runs/r1 was removed or replaced in phase train"
    assert slot.send(folder_lost(at=9)) == [
        Wake(name="finalize", at=49),
        EndPhase(phase=0, name="train", end="failed"),
        StopPart(phase=0, part="simulation", conductor=SIMULATION, incarnation=1, reason=reason),
        Wake(name="close", at=19),
    ]
    slot.drops(folder_lost(at=10))


@pytest.mark.parametrize("name", ["start", "close", "finalize", "retry", "stop"])
def test_no_other_deadline_means_anything(name):
    running().drops(passed(name))


def test_an_abort_asks_the_open_parts_to_stop():
    slot = running(phase=1)
    slot.send(ended("tasks", 1))
    assert slot.send(abort("enough", at=10)) == [
        Wake(name="finalize", at=50),
        EndPhase(phase=1, name="both", end="aborted"),
        StopPart(phase=1, part="simulation", conductor=SIMULATION, incarnation=1, reason="enough"),
        Wake(name="close", at=20),
    ]
    assert slot.state.outcome == "aborted"


def test_a_stop_interrupts_without_an_outcome_and_without_the_end_of_a_phase():
    slot = running(phase=1)
    slot.send(exited(LAKE))
    assert slot.send(stop(at=5)) == [
        Wake(name="stop", at=25),
        StopConductor(conductor=LAKE, incarnation=2, first="SIGTERM"),
        StopConductor(conductor=SIMULATION, incarnation=1, first="message"),
        StopConductor(conductor=TASKS, incarnation=1, first="message"),
    ]
    assert isinstance(slot.state, Stopping)
    assert slot.state.outcome is None


def test_an_urgent_stop_gives_no_grace():
    effects = running().send(stop(urgent=True))
    assert {effect.first for effect in effects if isinstance(effect, StopConductor)} == {"SIGKILL"}


def test_a_phase_begins_with_nothing_of_the_one_before():
    slot = running()
    slot.send(ended("simulation", 0, end="x"))
    assert isinstance(slot.state, Running)
    assert (slot.state.phase, slot.state.ends) == (1, ())


# -- a simulation that is another conductor's ------------------------------------------------------------------


FAR = replace(PLAN, phases=(TRAIN, replace(BOTH, simulated_by=TASKS)))


def far(part, incarnation=1):
    return StartPart(phase=1, part=part, conductor=TASKS, incarnation=incarnation)


def test_a_simulation_is_begun_by_the_conductor_that_its_phase_names():
    slot = running(FAR)
    assert slot.send(ended("simulation", 0))[-2:] == [far("simulation"), far("tasks")]
    assert slot.send(exited(SIMULATION))[-1].conductor == SIMULATION
    assert slot.send(exited(TASKS))[-1].conductor == TASKS
    assert slot.state.waits_for == "phase both: conductor tasks to be ready again"
    slot.send(started(TASKS, 2))
    assert slot.send(ready(TASKS, 2)) == [far("simulation", 2), far("tasks", 2)]
    slot.send(started(SIMULATION, 2))
    assert slot.send(ready(SIMULATION, 2)) == []


def test_both_parts_of_one_conductor_are_stopped_by_it_and_closed_by_its_exit():
    slot = running(FAR, phase=1)
    stops = [effect for effect in slot.send(abort()) if isinstance(effect, StopPart)]
    assert [(effect.part, effect.conductor) for effect in stops] == [("simulation", TASKS), ("tasks", TASKS)]
    assert slot.send(exited(SIMULATION)) == []
    assert slot.send(exited(TASKS)) == [WriteResult(outcome="aborted", reason="enough")]
