"""The lines of a run for operators: bad ends, phases, restarts, kills, and one with everything at the end."""

from __future__ import annotations

import msgspec
import pytest
from structlog.testing import capture_logs

from governor.logs import FIRST_LINES
from governor.messages import (
    EpisodeEnded,
    EpisodeRecord,
    PhaseResult,
    RunResult,
    TaskAttemptEnded,
    TaskEnded,
    TaskRecord,
    TaskStarted,
)
from governor.metrics import Metrics
from governor.run_file.load import parse
from governor.runs.assignment import Assignment
from governor.runs.run_log import RunLog
from states import Step
from states.conductors import ConductorStates
from states.effects import BeginPhase, EndPhase, StartConductor
from states.events import ConductorExited, PartEnded
from states.running import Running

RUN = parse(
    {
        "name": "mine",
        "phases": [
            {"name": "work", "tasks": [{"id": "fit", "call": "m:f", "timeout": "5s", "repeat": 20_000}]}
        ],
    }
)
ASSIGNMENT = Assignment(uid="r1", run=RUN, folder="/", restarts_used=2)
RESULT = RunResult(
    uid="r1",
    name="mine",
    outcome="failed",
    reason="phase work: 2 ended badly",
    submitted_at=100.0,
    started_at=102.5,
    ended_at=110.0,
    phases=(
        PhaseResult(
            name="play",
            mode="train",
            end="max_episodes",
            episodes={"terminated": 3},
            metrics={"steps_total": 30},
        ),
        PhaseResult(name="work", mode="train", end="tasks_done", task_outcomes={"succeeded": 4, "failed": 2}),
    ),
    folder="/runs/r1",
    seconds=7.25,
)


def running():
    plan = ASSIGNMENT.plan
    return Running(plan=plan, conductors=ConductorStates.of(plan), phase=0, open=frozenset({"tasks"}))


@pytest.fixture
def run():
    made = RunLog(ASSIGNMENT, Metrics())
    with capture_logs():
        made.stepped(
            running(),
            PartEnded("r1", 0.0, phase=0, part="tasks", end=""),
            Step(running(), (BeginPhase(phase=0, name="work"),)),
        )
    return made


def task(number=0, outcome="failed", error="ValueError: no (fit.py:3)"):
    record = TaskRecord(task="fit", run=number, outcome=outcome, attempts=2, seconds=1.23456, error=error)
    return TaskEnded(phase=0, record=record)


def test_a_bad_end_of_a_task_says_what_where_and_why(run):
    started = TaskStarted(phase=0, task="fit", run=0, attempt=2, pid=4711, node="10.0.0.7")
    with capture_logs() as lines:
        run.recorded([started, task(outcome="timed_out"), task(1, "succeeded"), task(2, "cancelled")])
    [line] = lines
    assert line == {
        "event": "task.ended",
        "log_level": "warning",
        "run": "r1",
        "run_name": "mine",
        "phase": "work",
        "task": "fit",
        "task_run": 0,
        "outcome": "timed_out",
        "attempts": 2,
        "seconds": 1.235,
        "deadline": 5.0,
        "pid": 4711,
        "node": "10.0.0.7",
        "reason": "ValueError: no (fit.py:3)",
    }


def test_so_does_an_attempt_after_which_another_one_follows_and_an_episode(run):
    attempt = TaskAttemptEnded(
        phase=0, task="fit", run=3, attempt=1, outcome="crashed", error="it died", seconds=2.0
    )
    episode = EpisodeRecord(
        index=7, worker=1, seed=1, outcome="failed", value=0.0, steps=3, seconds=0.5, reason="no"
    )
    with capture_logs() as lines:
        run.recorded([attempt, EpisodeEnded(phase=0, episode=episode)])
        good = msgspec.structs.replace(episode, outcome="terminated")
        run.recorded([EpisodeEnded(phase=0, episode=good)])
    first, second = lines
    assert (first["event"], first["attempt"], first["outcome"], first["reason"]) == (
        "task.attempt_ended",
        1,
        "crashed",
        "it died",
    )
    assert (second["event"], second["episode"], second["outcome"], second["reason"]) == (
        "episode.ended",
        7,
        "failed",
        "no",
    )


def test_ten_thousand_failures_are_a_few_lines_and_all_are_counted(run):
    with capture_logs() as lines:
        for start in range(0, 10_000, 100):
            run.recorded([task(number) for number in range(start, start + 100)])
        run.recorded([task(10_000, "crashed")])
        assert [line["event"] for line in lines] == ["task.ended"] * (FIRST_LINES + 1)
        ended = PartEnded(
            "r1",
            1.0,
            phase=0,
            part="tasks",
            end="tasks_done",
            failures=10_001,
            first_failure="task fit failed",
        )
        end = EndPhase(phase=0, name="work", end="tasks_done")
        run.stepped(running(), ended, Step(running(), (end,)))
    left_out, phase = lines[-2:]
    assert (left_out["event"], left_out["lines"], left_out["outcome"]) == (
        "lines.left_out",
        "task.ended",
        "failed",
    )
    assert (left_out["count"], left_out["log_level"]) == (10_000 - FIRST_LINES, "warning")
    assert (phase["event"], phase["log_level"], phase["failures"]) == ("phase.ended", "warning", 10_001)
    assert phase["tasks"] == {"failed": 10_000, "crashed": 1}
    assert (phase["end"], phase["reason"]) == ("tasks_done", "task fit failed")


def test_a_restart_says_why_and_a_kill_who_and_how(run):
    plan = ASSIGNMENT.plan
    name = plan.conductors[0].name
    exited = ConductorExited("r1", 1.0, name, 1, exit_code=-9)
    start = StartConductor(conductor=name, kind="task", incarnation=2, delay=0.25)
    with capture_logs() as lines:
        run.exited(name, pid=12, exit_code=-9, expected=False, reason="the kernel killed it")
        run.stepped(running(), exited, Step(running(), (start,)))
        run.signalled(name, pid=13, signal="SIGKILL", reason="silent for 10 s (deadlines.liveness)")
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("conductor.exited", "warning"),
        ("conductor.restarting", "warning"),
        ("process.killed", "warning"),
    ]
    assert lines[0]["reason"] == "the kernel killed it"
    assert "SIGKILL" in lines[1]["reason"]
    assert (lines[2]["pid"], lines[2]["signal"], lines[2]["reason"]) == (
        13,
        "SIGKILL",
        "silent for 10 s (deadlines.liveness)",
    )


def test_the_last_line_has_everything_on_it(run):
    run.submitted_by = {"uid": 1000, "gid": 100, "pid": 5}
    run.signalled("tasks", pid=13, signal="SIGTERM", reason="")
    run.signalled("tasks", pid=13, signal="SIGKILL", reason="")
    run.result = RESULT
    with capture_logs() as lines:
        run.ended("failed", RESULT.reason, peak_memory=1 << 20)
    assert lines == [
        {
            "event": "run.ended",
            "log_level": "error",
            "run": "r1",
            "run_name": "mine",
            "outcome": "failed",
            "reason": "phase work: 2 ended badly",
            "seconds": 7.25,
            "queue_seconds": 2.5,
            "phases": {"play": "max_episodes", "work": "tasks_done"},
            "episodes": {"terminated": 3},
            "steps": 30,
            "tasks": {"succeeded": 4, "failed": 2},
            "parent": None,
            "restarts": 2,
            "kills": 1,
            "peak_memory": 1 << 20,
            "submitted_by": {"uid": 1000, "gid": 100, "pid": 5},
        }
    ]


@pytest.mark.parametrize(
    ("outcome", "level"), [("finished", "info"), ("aborted", "warning"), ("failed", "error")]
)
def test_its_level_is_that_of_the_outcome(run, outcome, level):
    run.result = msgspec.structs.replace(RESULT, outcome=outcome)
    with capture_logs() as lines:
        run.ended(outcome, "")
    assert lines[0]["log_level"] == level


def test_an_interrupted_run_has_a_line_of_its_own(run):
    with capture_logs() as lines:
        run.ended(None, "the daemon is shutting down")
    assert (lines[0]["event"], lines[0]["log_level"]) == ("run.interrupted", "warning")
    assert lines[0]["reason"] == "the daemon is shutting down"
