"""A replay follows the record of the machine, and finds every difference."""

from __future__ import annotations

import msgspec
import pytest

from governor.messages import RunEvent
from governor.runs.record.event_log import entries
from governor.runs.record.replay import Replay
from states import Pristine, advance
from states.events import (
    AbortRequested,
    ConductorExited,
    ConductorReady,
    ConductorSilent,
    ConductorStarted,
    PartEnded,
    ResultWritten,
    RunAssigned,
    StopRequested,
    TracesRemoved,
)
from states.plan import ConductorPlan, PhasePlan, RunPlan

PLAN = RunPlan(
    uid="abc",
    name="r",
    conductors=(ConductorPlan(name="tasks", kind="task"),),
    phases=(PhasePlan(name="p", parts=frozenset({"tasks"})),),
)
UNNOTICED = ("run.accepted", "task.ended", "conductor.started")
"""Lines without which the machine is in the same state; their missing number is found."""
ABOUT = {"run": "abc", "at": 1.0}
TASKS = {**ABOUT, "conductor": "tasks", "incarnation": 1}
BEGUN = (
    RunAssigned(**ABOUT, plan=PLAN),
    ConductorStarted(**TASKS, pid=7, ticks=1, boot="b"),
    ConductorReady(**TASKS),
)
DONE = (
    PartEnded(**ABOUT, phase=0, part="tasks", end="completed"),
    ResultWritten(**ABOUT, outcome="finished"),
    ConductorExited(**TASKS, exit_code=0),
    TracesRemoved(**ABOUT),
)
STOPPED = (
    StopRequested(**ABOUT, reason="SIGTERM"),
    ConductorExited(**TASKS, exit_code=0),
    TracesRemoved(**ABOUT),
)


def recorded(*sequences):
    """The lines of the record of these events, as they come from a journal."""
    lines = [("run.accepted", {"name": "r"})]
    for sequence in sequences:
        state = Pristine()
        for event in sequence:
            step = advance(state, event)
            lines += entries(state, event, step, detail={"about": "it"})
            state = step.state
            if event is BEGUN[-1]:
                lines.append(("task.ended", {"phase": 0, "task": "t"}))
    return numbered(lines)


def numbered(lines):
    plain = [msgspec.msgpack.decode(msgspec.msgpack.encode(data)) for _, data in lines]
    return [
        RunEvent(uid="abc", seq=seq, at=0.0, kind=kind, data=data)
        for seq, ((kind, _), data) in enumerate(zip(lines, plain, strict=True), start=1)
    ]


def replayed(events):
    replay = Replay("abc")
    for event in events:
        if not replay.take(event):
            break
    return replay.end()


def test_a_run_over_two_invocations_agrees():
    found = replayed(recorded((*BEGUN, *STOPPED), (*BEGUN, *DONE)))
    assert found.difference is None
    assert (found.invocations, found.steps, found.ended, found.state) == (2, 13, True, "pristine")


def test_an_abort_with_its_sender_is_a_step_and_what_the_daemon_has_written_itself_is_none():
    events = (*BEGUN, AbortRequested(**ABOUT, reason="enough"))
    found = replayed(
        [
            msgspec.structs.replace(event, data={**event.data, "by": {"uid": 1000}})
            if event.kind == AbortRequested.kind
            else event
            for event in recorded(events)
        ]
    )
    assert (found.difference, found.state) == (None, "finalizing")
    by_daemon = ("conductor.exited", {"conductor": "a", "by": "recovery"})
    assert replayed(numbered([("run.accepted", {}), by_daemon])).difference is None


def test_a_conductor_that_was_killed_has_the_reason_of_that_on_record():
    killed = (ConductorSilent(**TASKS, seconds=10.0), ConductorExited(**TASKS, exit_code=-9))
    lines = recorded((*BEGUN, *killed))
    [exited] = [line.data for line in lines if line.kind == ConductorExited.kind]
    assert (exited["expected"], exited["reason"]) == (False, "silent for 10 s (deadlines.liveness)")
    assert replayed(lines).difference is None


def test_a_run_in_work_agrees_as_far_as_it_is():
    found = replayed(recorded(BEGUN))
    assert (found.difference, found.ended, found.state) == (None, False, "running")


@pytest.mark.parametrize("number", range(1, 17))
def test_a_line_that_is_missing_is_found(number):
    events = recorded((*BEGUN, *DONE))
    assert len(events) == 17
    left = [event for event in events if event.seq != number]
    for renumbered in (left, numbered([(event.kind, event.data) for event in left])):
        found = replayed(renumbered)
        harmless = renumbered is not left and events[number - 1].kind in UNNOTICED
        assert (found.difference is None) == harmless, found


def test_a_line_with_another_value_is_found():
    events = recorded((*BEGUN, *DONE))
    for event in events:
        for name, value in event.data.items():
            if event.kind in ("run.transition", "run.ended", "phase.started", "phase.ended"):
                odd = RunEvent(
                    uid="abc", seq=event.seq, at=0.0, kind=event.kind, data={**event.data, name: [value]}
                )
                found = replayed([odd if each is event else each for each in events])
                assert found.difference.seq == event.seq
                assert name in found.difference.expected


def test_an_end_without_a_step_names_its_author():
    begun = [(event.kind, event.data) for event in recorded(BEGUN)]
    ended = {"outcome": "failed", "reason": "", "by": "recovery"}
    assert replayed(numbered([*begun, ("run.ended", ended)])).difference is None
    twice = replayed(numbered([*begun, ("run.ended", ended), ("run.ended", ended)]))
    assert twice.difference.expected == "nothing after run.ended"
    del ended["by"]
    assert (
        "no run.ended in state running"
        in replayed(numbered([*begun, ("run.ended", ended)])).difference.expected
    )


def test_an_event_that_is_dropped_or_of_another_version_is_found():
    late = [
        *((event.kind, event.data) for event in recorded(BEGUN)),
        ("traces.removed", {"at": 1.0, "left": []}),
    ]
    assert "dropped in state running" in replayed(numbered(late)).difference.expected
    other = [("run.accepted", {}), ("run.assigned", {"at": 1.0, "plan": {}})]
    assert "RunAssigned of this version" in replayed(numbered(other)).difference.expected
