"""Each check finds its violation."""

import pytest

from governor.messages import PhaseResult, RunEvent, TaskRecord
from tests.faults.checks import FORGED_RETURN, FORGERY, Seen, judge
from tests.support.run_results import run_result

RECORD = {"task": "t", "run": 0, "outcome": "succeeded", "attempts": 1, "seconds": 0.1, "value": 1}
TASK = TaskRecord(**RECORD)
STARTED = ("task.started", {"phase": 0, "task": "t", "run": 0, "attempt": 1})
ENDED = ("task.ended", {"phase": 0, "record": RECORD})
EPISODE = ("episode.ended", {"phase": 0, "episode": {"index": 0, "outcome": "terminated"}})
FORGED = ("part.ended", {"phase": 0, "part": "tasks", "end": FORGERY})
AGAIN = ("conductor.started", {"conductor": "agent.a", "incarnation": 2, "pid": 7, "ticks": 9, "boot": "b"})
OVER = ("run.ended", {"outcome": "finished", "by": "recovery"})


def events(*lines):
    return [RunEvent(uid="u", seq=n, at=0.0, kind=kind, data=data) for n, (kind, data) in enumerate(lines, 1)]


def found(folder, *lines, seen=None, outcome="finished", tasks=(TASK,), episodes=1, metrics=None, **more):
    phase = PhaseResult(
        name="p",
        mode="-",
        end="x",
        metrics=metrics or {},
        tasks=tuple(tasks),
        episodes={"terminated": episodes},
    )
    result = run_result("u", outcome=outcome, phases=(phase,), folder=str(folder))
    recorded = events(*lines)
    seen = seen or Seen(events=recorded)
    return judge(
        uid="u",
        seen=seen,
        recorded=recorded,
        damage=[],
        result=result,
        run_folder=folder,
        whole=(1, 1),
        **more,
    )


def test_a_correct_run_has_no_finding(tmp_path):
    assert found(tmp_path, STARTED, ENDED, EPISODE, OVER).all == []


def test_a_conductor_that_was_struck_may_be_replaced(tmp_path):
    lines = (AGAIN, STARTED, ENDED, EPISODE, OVER)
    assert not any("was replaced" in line for line in found(tmp_path, *lines).other)


@pytest.mark.parametrize(
    ("lines", "more", "kind", "expected"),
    [
        ((STARTED, ENDED, EPISODE, EPISODE, OVER), {"episodes": 2}, "doubled", "episode 0 of phase 0"),
        ((STARTED, ENDED, STARTED, EPISODE, OVER), {}, "doubled", "was started after it had ended"),
        ((STARTED, ENDED, ENDED, EPISODE, OVER), {}, "doubled", "ended twice"),
        ((STARTED, ENDED, EPISODE, OVER), {"tasks": ()}, "lost", "the result says None"),
        ((STARTED, ENDED, EPISODE, OVER), {"episodes": 0}, "lost", "episodes on record"),
        ((STARTED, ENDED, EPISODE), {}, "other", "it ended 0 times"),
        ((STARTED, ENDED, EPISODE, OVER), {"outcome": "failed"}, "other", "it ended as failed"),
        ((STARTED, ENDED, OVER), {"episodes": 0}, "lost", "0 episodes and 1 tasks of 1 and 1"),
        ((FORGED, STARTED, ENDED, EPISODE, OVER), {}, "other", "event 1 part.ended is a stranger's"),
        ((STARTED, ENDED, EPISODE, OVER), {"metrics": {"r": FORGED_RETURN}}, "other", "the result is a"),
        ((AGAIN, STARTED, ENDED, EPISODE, OVER), {"untouched": True}, "other", "agent.a was replaced"),
    ],
)
def test_each_violation_is_found(tmp_path, lines, more, kind, expected):
    assert any(expected in line for line in getattr(found(tmp_path, *lines, **more), kind))


def test_an_event_that_a_client_received_but_the_record_lacks_is_lost(tmp_path):
    received = events(STARTED, ENDED, EPISODE, OVER, STARTED)
    assert (
        "received and is gone"
        in found(tmp_path, STARTED, ENDED, EPISODE, OVER, seen=Seen(events=received)).lost[0]
    )
    gap = found(tmp_path, STARTED, ENDED, EPISODE, OVER, seen=Seen(events=[received[0], received[2]]))
    assert "gaps or doubles" in gap.other[0]


def test_a_task_that_starts_after_its_end_was_reported_is_doubled(tmp_path):
    (tmp_path / "marks").write_text("t 0 17\nt 0 18\n")
    lines = (STARTED, ENDED, EPISODE, OVER)
    seen = Seen(events=events(*lines), marks={("t", 0): len("t 0 17\n")})
    assert "started after its end was received: t 0 18" in found(tmp_path, *lines, seen=seen).doubled[0]
