"""The explanation of a run in each of its states: what it waits for, since when, until when at most."""

from __future__ import annotations

from governor.messages import ConductorStatus, LimitUse, RunEvent, RunStatus
from governor.run_file.load import parse
from governor.runs.explain import explain

RUN = parse(
    {
        "name": "r",
        "conductors": {
            "environments": {"e": {"entry": "gymnasium:CartPole-v1", "pool": 2}},
            "agents": {"a": {"entry": "m:A"}},
        },
        "phases": [
            {
                "name": "p",
                "simulate": {
                    "environment": "e", "agents": ["a"], "episodes": 9, "workers": 2, "episode_timeout": "30s",
                },
                "tasks": [{"id": "t", "call": "m:f", "timeout": 5}, {"id": "u", "call": "m:f"}],
            }
        ],
    },
    "r",
)  # fmt: skip


def status(state, **more):
    return RunStatus(
        **{
            "uid": "abc", "name": "r", "state": state, "outcome": None, "reason": "", "waits_for": "it",
            "submitted_at": 1.0, **more,
        }
    )  # fmt: skip


def conductor(name, state, incarnation=1):
    return ConductorStatus(name=name, kind="task", state=state, pid=7, incarnation=incarnation)


def event(seq, kind, **data):
    return RunEvent(uid="abc", seq=seq, at=float(10 * seq), kind=kind, data=data)


def explained(of, *events, deadlines=None, phase=None):
    latest = events[-1] if events else None
    lines = explain(of, events=events, latest=latest, deadlines=deadlines or {}, phase=phase)
    return [(line.what, line.since, line.until) for line in lines]


def test_a_run_that_is_not_in_work_takes_one_line():
    assert explained(status("queued")) == [("queued: waits for it", 1.0, None)]
    ended = status("ended", outcome="failed", reason="no room", ended_at=9.0)
    assert explained(ended) == [("it has ended: failed, no room", 9.0, None)]
    assert explained(status("interrupted")) == [("interrupted: waits for it", None, None)]


def test_of_a_paused_run_it_is_told_since_when_and_no_clock_runs():
    events = [event(1, "run.transition"), event(2, "run.pause_requested")]
    [line, *_] = explained(status("running", paused=True), *events, deadlines={("wall_clock", ""): 99.0})
    assert line == ("running: waits for it", 20.0, None)


def test_a_start_names_the_conductors_that_are_not_ready_and_its_deadline():
    crew = (conductor("tasks", "ready"), conductor("simulation", "starting", 2))
    events = [
        event(2, "run.transition"),
        event(3, "conductor.started", conductor="tasks"),
        event(4, "conductor.exited", conductor="simulation"),
    ]
    deadlines = {("start", ""): 99.0, ("wall_clock", ""): 999.0, ("restart", "simulation"): 50.0}
    assert explained(status("starting", conductors=crew), *events, deadlines=deadlines) == [
        ("starting: waits for it", 20.0, 99.0),
        ("conductor simulation is starting (start 2, pid 7)", 40.0, 50.0),
        ("last on record: number 4, conductor.exited", 40.0, None),
    ]


def test_a_phase_tells_how_far_it_is_and_what_bounds_its_pieces():
    of = status(
        "running", phase_index=0, phases=1, episodes_ended=3, episodes_total=9, tasks_ended=1, tasks_total=2
    )
    events = [event(2, "run.transition"), event(3, "phase.started"), event(4, "episode.ended")]
    assert explained(of, *events, deadlines={("start", ""): 99.0}, phase=RUN.phases[0]) == [
        ("running: waits for it", 20.0, None),
        ("phase p, 1 of 1: 3 of 9 episodes have ended, 2 at a time, each 30.0s at most", 30.0, None),
        ("phase p, 1 of 1: 1 of 2 runs of tasks have ended, an attempt without a time-out", 30.0, None),
        ("last on record: number 4, episode.ended", 40.0, None),
    ]


def test_the_use_of_each_limit_is_shown():
    limits = (
        LimitUse(limit="tasks", allowed=100, used=5),
        LimitUse(limit="memory", allowed=2 * 1024**3, used=1_342_177_280),
        LimitUse(limit="disk", allowed=1024**2),
    )
    assert explained(status("running", limits=limits))[1] == (
        "limits: tasks 5 of 100, memory 1.25 GiB of 2 GiB, disk ? of 1 MiB", None, None,
    )  # fmt: skip


def test_the_first_deadline_of_the_end_counts_and_many_conductors_are_counted():
    deadlines = {("close", ""): 30.0, ("finalize", ""): 60.0, ("stop", ""): 90.0}
    assert explained(status("finalizing"), deadlines=deadlines) == [("finalizing: waits for it", None, 30.0)]
    crew = tuple(conductor(f"agent.{number}", "ready") for number in range(7))
    lines = explained(status("stopping", conductors=(*crew, conductor("x", "gone"))), deadlines=deadlines)
    assert lines[0] == ("stopping: waits for it", None, 90.0)
    assert [what for what, *_ in lines[1:]] == [
        *(f"conductor agent.{number} is ready (start 1, pid 7)" for number in range(5)),
        "and 2 conductors more",
    ]
