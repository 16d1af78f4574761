"""What a daemon tells of one run: the events that the tests of rendering show."""

import dataclasses

from governor.executor.watching import Watching
from governor.messages import (
    ConductorStatus,
    PhaseResult,
    RunEvent,
    RunList,
    RunResult,
    RunStatus,
    StatusReport,
    TaskRecord,
    WatchEnd,
)

EPISODE = {"worker": 0, "seed": 1, "steps": 6, "seconds": 0.0125, "reason": ""}
KINDS = [
    ("run.accepted", {"name": "lake"}),
    ("run.transition", {"from": "pristine", "to": "starting", "cause": "assigned"}),
    ("conductor.started", {"conductor": "agent.walker", "pid": 7, "incarnation": 1}),
    ("conductor.started", {"conductor": "tasks", "pid": 8, "incarnation": 1}),
    ("conductor.ready", {"conductor": "agent.walker"}),
    ("conductor.ready", {"conductor": "tasks"}),
    ("phase.started", {"phase": "train", "index": 0, "mode": "train", "episodes": 3, "tasks": 0}),
    ("run.transition", {"from": "starting", "to": "running", "cause": "ready"}),
    (
        "episode.ended",
        {"phase": 0, "episode": {"index": 0, "value": 1.0, "outcome": "terminated", **EPISODE}},
    ),
    (
        "episode.ended",
        {
            "phase": 0,
            "episode": {
                "index": 1,
                "value": 0.0,
                "outcome": "failed",
                **EPISODE,
                "reason": "ValueError: \x1b[31mred",
            },
        },
    ),
    (
        "part.ended",
        {
            "phase": 0,
            "part": "simulation",
            "end": "max_episodes",
            "failures": 1,
            "first_failure": "ValueError",
            "metrics": {"return_mean": 0.5, "noise": 1},
        },
    ),
    ("phase.ended", {"phase": "train", "index": 0, "end": "max_episodes"}),
    ("phase.started", {"phase": "analyse", "index": 1, "mode": "train", "episodes": 0, "tasks": 2}),
    ("task.started", {"phase": 1, "task": "fit", "run": 0, "attempt": 1, "pid": 9, "node": "n"}),
    ("task.started", {"phase": 1, "task": "fit", "run": 1, "attempt": 1, "pid": 9, "node": "n"}),
    (
        "task.attempt_ended",
        {
            "phase": 1,
            "task": "fit",
            "run": 1,
            "attempt": 1,
            "outcome": "crashed",
            "error": "killed",
            "seconds": 2.0,
        },
    ),
    (
        "task.ended",
        {
            "phase": 1,
            "record": {
                "task": "fit",
                "run": 0,
                "outcome": "succeeded",
                "attempts": 1,
                "seconds": 0.5,
                "metrics": {"gain": 0.25},
                "error": "",
            },
        },
    ),
    (
        "task.ended",
        {
            "phase": 1,
            "record": {
                "task": "fit",
                "run": 1,
                "outcome": "timed_out",
                "attempts": 2,
                "seconds": 60.0,
                "metrics": {},
                "error": "past its deadline",
            },
        },
    ),
    ("conductor.exited", {"conductor": "tasks", "exit_code": -9, "reason": "", "expected": False}),
    ("news.of.tomorrow", {"at": 1.0, "x": 0.123456}),
    ("run.transition", {"from": "running", "to": "finalizing", "cause": "failed"}),
    ("run.ended", {"outcome": "failed", "reason": "a task timed out"}),
]
EVENTS = [
    RunEvent(uid="u1", seq=number, at=0.0, kind=kind, data=data)
    for number, (kind, data) in enumerate(KINDS, 1)
]

STATUS = RunStatus(
    uid="u1", name="lake", state="running", outcome=None, reason="", waits_for="episodes", submitted_at=0.0, started_at=1.0,
    phase="train", phase_index=0, phases=2, episodes_ended=2, episodes_total=3, metrics={"return_mean": 0.5},
    conductors=(ConductorStatus(name="agent.walker", kind="agent", state="ready", pid=7, incarnation=1),),
)  # fmt: skip
REPORT = StatusReport(
    pid=5, version="1.2.3", endpoint="ipc:///x", uptime=65, slots=2, state="serving", runs=(STATUS,)
)
RUNS = RunList(runs=(STATUS,))
RESULT = RunResult(
    uid="u1", name="lake", outcome="failed", reason="a task timed out", submitted_at=0.0, started_at=1.0, ended_at=13.4, folder="/runs/u1",
    phases=(
        PhaseResult(
            name="train", mode="train", end="until", episodes={"terminated": 2, "failed": 1},
            metrics={"return_mean": 0.5, "return_std": 0.25, "return_min": 0, "return_max": 1, "steps_mean": 8.25},
        ),
        PhaseResult(
            name="analyse", mode="train", end="tasks_done",
            tasks=(
                TaskRecord(task="load", run=0, outcome="succeeded", attempts=1, seconds=0.002, value=[1.0] * 100),
                TaskRecord(task="fit", run=0, outcome="succeeded", attempts=1, seconds=0.5, metrics={"gain": 0.25}),
                TaskRecord(task="fit", run=1, outcome="timed_out", attempts=2, seconds=60, error="past its deadline [red]now"),
                TaskRecord(task="show", run=0, outcome="upstream_failed", attempts=0, seconds=0, cause="fit"),
            ),
        ),
    ),
)  # fmt: skip


@dataclasses.dataclass
class Recorded:
    """An executor that tells the events above."""

    end: WatchEnd | None = dataclasses.field(default_factory=lambda: WatchEnd(outcome="failed"))

    async def status(self, uid=None):
        return REPORT

    def watch(self, uid, after=0):
        assert uid == "u1"

        async def said():
            yield [*EVENTS[after:], self.end]

        return Watching(said())
