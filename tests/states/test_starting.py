from __future__ import annotations

from dataclasses import replace

from states import Finalizing, Running, Starting, Stopping
from states.effects import BeginPhase, StartConductor, StartPart, StopConductor, Wake, WriteResult
from tests.states.state_scenes import (
    LAKE,
    PLAN,
    SIMULATION,
    TASKS,
    Slot,
    abort,
    assigned,
    ended,
    exceeded,
    exited,
    failed_report,
    folder_lost,
    passed,
    ready,
    started,
    starting,
    stop,
    stuck,
)


def begun_again(conductor, incarnation, *, at, delay):
    kind = {LAKE: "environment", SIMULATION: "simulation", TASKS: "task"}[conductor]
    return [
        StartConductor(conductor=conductor, kind=kind, incarnation=incarnation, delay=delay),
        Wake(
            name="restart",
            at=at + delay + PLAN.deadlines.start,
            conductor=conductor,
            incarnation=incarnation,
        ),
    ]


def failed(reason, *, at=0.0):
    return [Wake(name="finalize", at=at + 40), WriteResult(outcome="failed", reason=reason)]


def test_the_last_conductor_that_is_ready_begins_the_first_phase():
    slot = starting()
    assert slot.send(ready(LAKE)) == []
    assert slot.send(ready(TASKS)) == []
    assert slot.state.waits_for == "conductors to be ready: simulation"
    assert slot.send(ready(SIMULATION)) == [
        BeginPhase(phase=0, name="train"),
        StartPart(phase=0, part="simulation", conductor=SIMULATION, incarnation=1),
    ]
    assert isinstance(slot.state, Running)
    assert slot.cause == "all conductors are ready"


def test_ready_counts_also_before_the_pid_is_known():
    slot = Slot()
    slot.send_all(assigned(), ready(LAKE), started(LAKE, pid=7))
    assert slot.state.conductors.find(LAKE).standing == "ready"
    assert slot.state.conductors.find(LAKE).pid == 7


def test_a_second_ready_is_dropped():
    slot = starting()
    slot.send(ready(LAKE))
    slot.drops(ready(LAKE))


def test_an_interrupted_run_continues_in_its_first_unfinished_phase():
    slot = starting(replace(PLAN, first_phase=1))
    assert slot.send_all(ready(LAKE), ready(TASKS), ready(SIMULATION)) == [
        BeginPhase(phase=1, name="both"),
        StartPart(phase=1, part="simulation", conductor=SIMULATION, incarnation=1),
        StartPart(phase=1, part="tasks", conductor=TASKS, incarnation=1),
    ]


def test_a_run_whose_phases_have_all_ended_is_finalized_at_once():
    slot = starting(replace(PLAN, first_phase=3))
    assert slot.send_all(ready(LAKE), ready(TASKS), ready(SIMULATION, at=5)) == [
        Wake(name="finalize", at=45),
        WriteResult(outcome="finished", reason=""),
    ]
    assert slot.state.waits_for == "the result to be durable"


def test_a_dead_conductor_is_started_again_with_growing_back_off_while_the_budget_lasts():
    slot = starting()
    assert slot.send(exited(LAKE, 1, at=10)) == begun_again(LAKE, 2, at=10, delay=0.25)
    assert slot.send(exited(LAKE, 2, at=20)) == begun_again(LAKE, 3, at=20, delay=0.5)
    assert isinstance(slot.state, Starting)
    assert slot.state.conductors.restarts_left == 0


def test_beyond_the_budget_the_run_fails_with_exit_code_last_words_and_budget_in_one_line():
    slot = starting()
    slot.send_all(exited(LAKE, 1), exited(TASKS, 1), failed_report(LAKE, "ImportError: no lake", 2))
    reason = (
        "conductor environment.lake exited with code 1: ImportError: no lake"
        " (the budget of 2 conductor restarts is used up)"
    )
    assert slot.send(exited(LAKE, 2, code=1, at=10)) == failed(reason, at=10)
    assert isinstance(slot.state, Finalizing)
    assert slot.cause == reason
    assert slot.state.outcome == "failed"


def test_without_restarts_the_first_exit_is_the_end():
    slot = starting(replace(PLAN, restarts=0))
    assert slot.send(exited(LAKE, code=None, reason="no memory")) == failed(
        "conductor environment.lake could not be started: no memory"
    )


def test_news_of_an_earlier_incarnation_is_dropped():
    slot = starting()
    slot.send(exited(LAKE))
    for event in (exited(LAKE), ready(LAKE), started(LAKE), failed_report(LAKE, "late"), stuck(LAKE)):
        slot.drops(event)


def test_the_start_deadline_names_the_missing_conductors():
    slot = starting()
    slot.send(ready(LAKE))
    assert slot.send(passed("start", at=60)) == failed(
        "not ready within 60 s (deadlines.start): simulation, tasks", at=60
    )


def test_the_start_deadline_includes_how_the_missing_conductors_last_exited():
    slot = starting()
    slot.send_all(
        ready(LAKE), ready(SIMULATION), exited(TASKS, code=None, reason="Ray's head died 8 times in a row")
    )
    assert slot.send(passed("start", at=60)) == failed(
        "not ready within 60 s (deadlines.start): tasks (conductor tasks could not be started: Ray's head died 8 times in a row)",
        at=60,
    )


def test_a_restarted_conductor_that_is_not_ready_in_time_is_killed_and_its_exit_counts():
    slot = starting()
    slot.send_all(exited(LAKE), started(LAKE, 2))
    assert slot.send(passed("restart", LAKE, 2)) == [
        StopConductor(conductor=LAKE, incarnation=2, first="SIGKILL")
    ]
    assert isinstance(slot.state, Starting)
    assert slot.send(exited(LAKE, 2, at=70)) == begun_again(LAKE, 3, at=70, delay=0.5)
    reason = (
        "conductor environment.lake was killed by SIGKILL: not ready within 60 s (deadlines.start)"
        " (the budget of 2 conductor restarts is used up)"
    )
    slot.send(passed("restart", LAKE, 3))
    assert slot.send(exited(LAKE, 3)) == failed(reason)


def test_the_restart_deadline_of_one_that_was_ready_or_was_replaced_means_nothing():
    slot = starting()
    slot.send_all(exited(LAKE), ready(LAKE, 2))
    slot.drops(passed("restart", LAKE, 2))
    slot.send(exited(LAKE, 2))
    slot.drops(passed("restart", LAKE, 2))
    slot.drops(passed("restart", "agent.nobody", 1))


def test_one_that_would_not_die_ends_the_run():
    slot = starting()
    slot.send_all(exited(LAKE), started(LAKE, 2, pid=7), passed("restart", LAKE, 2))
    assert slot.send(stuck(LAKE, 2, pid=7)) == failed(
        "conductor environment.lake could not be killed: pid 7 is alive"
    )
    assert slot.state.conductors.stuck_pids == (7,)


def test_the_memory_of_a_start_is_limited_too():
    slot = starting()
    reason = "limit memory of 3 MiB exceeded while starting: 4.5 MiB"
    assert slot.send(exceeded("memory", 3 * 1024**2, 4_718_592, at=30)) == failed(reason, at=30)


def test_a_folder_may_be_removed_while_starting_too():
    slot = starting()
    reason = "the folder /s/runs/r1 was removed or replaced while starting"
    assert slot.send(folder_lost(at=30)) == failed(reason, at=30)


def test_the_wall_clock_limit_holds_while_starting_too():
    slot = starting(replace(PLAN, wall_clock=30))
    assert slot.send(passed("wall_clock", at=30)) == failed(
        "limit wall_clock of 30 s reached while starting", at=30
    )


def test_an_abort_is_an_outcome():
    slot = starting()
    assert slot.send(abort("enough", at=5)) == [
        Wake(name="finalize", at=45),
        WriteResult(outcome="aborted", reason="enough"),
    ]
    assert isinstance(slot.state, Finalizing)


def test_a_stop_is_none_the_run_is_interrupted():
    slot = starting()
    slot.send(ready(LAKE))
    assert slot.send(stop("going down", at=5)) == [
        Wake(name="stop", at=25),
        StopConductor(conductor=LAKE, incarnation=1, first="message"),
        StopConductor(conductor=SIMULATION, incarnation=1, first="SIGTERM"),
        StopConductor(conductor=TASKS, incarnation=1, first="SIGTERM"),
    ]
    assert isinstance(slot.state, Stopping)
    assert slot.state.outcome is None
    assert slot.state.shutdown
    assert slot.cause == "going down"


def test_no_part_can_end_before_one_began():
    starting().drops(ended("simulation"))


def test_commands_at_the_wrong_time_are_refused():
    slot = starting()
    assert slot.refuses(assigned()) == "run r1 is in work (starting)"
    assert slot.refuses(abort(run="r0")) == "of run r0, which is not in work here"
    assert slot.drops(exited(LAKE, run="")) == "of run (none), which is not in work here"
