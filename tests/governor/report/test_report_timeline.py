"""The timeline of a run from its events."""

from governor.messages import RunEvent
from governor.report import timeline
from governor.report.timeline import timeline_of


def events(*made):
    return [
        RunEvent(uid="u", seq=seq, at=at, kind=kind, data=data)
        for seq, (at, kind, data) in enumerate(made, 1)
    ]


def spans(found):
    return [
        (found.lanes[lane].name, label, start, end, outcome)
        for lane, label, start, end, outcome in zip(
            found.spans.lane,
            found.spans.label,
            found.spans.start,
            found.spans.end,
            found.spans.outcome,
            strict=True,
        )
    ]


def marks(found):
    return [
        (found.lanes[lane].name, at, kind)
        for lane, at, kind in zip(found.marks.lane, found.marks.at, found.marks.kind, strict=True)
    ]


def started(at, name="agent.a", number=1):
    return at, "conductor.started", {"conductor": name, "incarnation": number, "pid": 7}


def exited(at, code, *, expected=False, name="agent.a"):
    return at, "conductor.exited", {"conductor": name, "exit_code": code, "expected": expected}


def task(at, run=0, pid=1, name="fit"):
    return at, "task.started", {"phase": 0, "task": name, "run": run, "attempt": 1, "pid": pid, "node": "n"}


def ended(at, run=0, outcome="succeeded", seconds=1.0, name="fit"):
    record = {"task": name, "run": run, "outcome": outcome, "seconds": seconds}
    return at, "task.ended", {"phase": 0, "record": record}


def test_without_events_there_is_none():
    assert timeline_of([]) is None


def test_a_killed_process_is_a_span_with_its_kill_and_its_restart():
    found = timeline_of(
        events(started(10), exited(12, -9), started(13, number=2), exited(15, 0, expected=True))
    )
    assert spans(found) == [
        ("agent.a", "agent.a", 0, 2, "crashed"),
        ("agent.a", "agent.a, number 2", 3, 5, ""),
    ]
    assert marks(found) == [("agent.a", 2, "kill"), ("agent.a", 3, "restart")]
    assert found.marks.label[0] == "agent.a: killed by SIGKILL"
    assert (found.begin, found.end) == (10, 15)


def test_a_process_that_was_not_started_is_a_moment():
    found = timeline_of(events(started(10), exited(12, None, name="agent.b")))
    assert marks(found) == [("agent.b", 2, "failure")]
    assert found.marks.label == ["agent.b: not started"]


def test_phases_and_states():
    found = timeline_of(
        events(
            (1, "run.transition", {"from": "pristine", "to": "starting", "cause": "x"}),
            (2, "run.transition", {"from": "starting", "to": "running", "cause": "y"}),
            (2, "phase.started", {"phase": "train", "index": 0, "mode": "train"}),
            (5, "phase.ended", {"phase": "train", "index": 0, "end": "until"}),
        ),
        now=6,
    )
    assert spans(found) == [
        ("run", "starting", 0, 1, ""),
        ("run", "running", 1, None, ""),
        ("phases", "train", 1, 4, "until"),
    ]
    assert found.end == 6


def test_attempts_take_the_first_free_runner():
    found = timeline_of(
        events(
            task(0, 0, pid=1),
            task(0, 1, pid=2),
            ended(1, 0),
            task(1, 2, pid=3),
            ended(2, 1, "failed"),
            ended(3, 2),
        )
    )
    assert spans(found) == [
        ("n 1", "fit[0]", 0, 1, "succeeded"),
        ("n 2", "fit[1]", 0, 2, "failed"),
        ("n 1", "fit[2]", 1, 3, "succeeded"),
    ]


def test_an_attempt_whose_start_is_not_on_record_took_its_seconds():
    found = timeline_of(events((0, "run.accepted", {}), ended(5, seconds=2.0)))
    assert spans(found) == [("runner 1", "fit[0]", 3, 5, "succeeded")]


def test_what_was_at_work_when_the_daemon_died_is_interrupted():
    found = timeline_of(
        events((0, "run.assigned", {}), started(1), task(2), (9, "run.assigned", {}), started(9))
    )
    assert spans(found)[:2] == [
        ("agent.a", "agent.a", 1, 2, "interrupted"),
        ("n 1", "fit[0]", 2, 2, "interrupted"),
    ]
    assert marks(found) == [("run", 2, "interrupted")]


def test_of_too_many_those_that_failed_and_the_longest_stay(monkeypatch):
    monkeypatch.setattr(timeline, "MOST_SPANS", 3)
    many = [each for run in range(9) for each in (task(run * 10, run), ended(run * 10 + run + 1, run))]
    bad = [task(100, 9), ended(100.5, 9, "failed")]
    found = timeline_of(events(*many, *bad), left_out=5)
    assert [label for _, label, *_ in spans(found)] == ["fit[7]", "fit[8]", "fit[9]"]
    assert found.left_out == 5 + 7
