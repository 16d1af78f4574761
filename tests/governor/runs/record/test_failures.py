"""The failures of a run: one by one in pages, and by cause in its result."""

from __future__ import annotations

import pytest

from governor.errors import UsageError
from governor.index_ranges import IndexRanges
from governor.journal.journal import Journal
from governor.messages import EpisodeRecord, TaskRecord
from governor.run_file.load import parse
from governor.runs.assignment import Assignment
from governor.runs.record import failures, result

SIMULATE = {"environment": "e", "agents": ["a"], "episodes": 90}
RUN = parse(
    {
        "name": "r",
        "conductors": {"environments": {"e": {"entry": "m:E"}}, "agents": {"a": {"entry": "m:A"}}},
        "phases": [
            {"name": "play", "on_failure": "continue", "simulate": SIMULATE},
            {"name": "work", "tasks": [{"id": "t", "call": "m:f", "retries": 1}]},
        ],
    }
)
DIGEST = "0123456789abcdef"


def episode(index, reason=""):
    return EpisodeRecord(
        index=index,
        worker=0,
        seed=1,
        outcome="failed" if reason else "terminated",
        value=1.0,
        steps=3,
        seconds=0.1,
        reason=reason,
        traceback=DIGEST if reason else "",
    )


@pytest.fixture
async def journal(tmp_path):
    opened = Journal(tmp_path / "governor.db")

    def change(tx):
        tx.submit(uid="r1", key=None, name="r", spec=RUN.raw(), folder="/")
        tx.event("r1", "phase.started", {"index": 0, "phase": "play"})
        tx.traceback("r1", DIGEST, "Traceback\nKeyError", first=True)
        for start in range(0, 90, 30):
            records = [
                episode(n, f"agent.act: KeyError: {n} (a.py:3)" if n % 10 == 9 else "")
                for n in range(start, start + 30)
            ]
            tx.episodes("r1", 0, records)
        tx.event("r1", "phase.started", {"index": 1, "phase": "work"})
        attempt = {
            "phase": 1,
            "task": "t",
            "run": 0,
            "attempt": 1,
            "outcome": "failed",
            "error": "ValueError",
        }
        tx.events("r1", "task.attempt_ended", [{**attempt, "traceback": "f" * 16}])
        tx.tasks("r1", 1, [TaskRecord(task="t", run=0, outcome="timed_out", error="too long", attempts=2)])
        fault = {"fault": "the disk is full", "traceback": "Traceback\nOSError"}
        tx.event("r1", "part.ended", {"phase": 1, "part": "tasks", "end": "stopped", "failures": 1, **fault})
        tx.event(
            "r1", "conductor.failed", {"conductor": "agent.a", "reason": "no", "traceback": "Traceback\nno"}
        )
        tx.event("r1", "conductor.exited", {"conductor": "agent.a", "exit_code": 1, "expected": False})
        tx.event("r1", "conductor.exited", {"conductor": "agent.b", "exit_code": -11, "expected": False})

    await opened.write(change)
    yield opened
    await opened.close()


def page(journal, *, phase=None, after=0, limit=100):
    return failures.page(journal, "r1", phase=phase, after=after, limit=limit)


async def test_each_failure_is_listed_with_its_traceback_and_what_followed_is_not(journal):
    found = page(journal)
    assert [(one.phase, one.what) for one in found.failures] == [
        *(("play", f"episode {n}") for n in range(9, 90, 10)),
        ("work", "attempt 1 of task t[0]"),
        ("work", "task t[0]"),
        ("work", "tasks"),
        (None, "conductor agent.a"),
        (None, "conductor agent.b"),
    ]
    assert not found.more
    assert found.failures[-1].reason == "its process ended with exit code -11"
    assert found.tracebacks[found.failures[0].traceback] == "Traceback\nKeyError"
    assert [found.tracebacks.get(one.traceback) for one in found.failures[9:]] == [
        None,  # it was not kept
        None,
        "Traceback\nOSError",
        "Traceback\nno",
        None,
    ]
    assert len(found.tracebacks) == 3


async def test_what_a_conductor_said_is_shown_also_if_it_is_one_line(journal):
    said = {"conductor": "service.s", "reason": "its program ended", "traceback": "no weights!"}
    await journal.write(lambda tx: tx.event("r1", "conductor.failed", said))
    found = page(journal)
    assert found.tracebacks[found.failures[-1].traceback] == "no weights!"


async def test_pages_have_each_of_them_once(journal):
    seen, after, more = [], 0, True
    while more:
        found = page(journal, after=after, limit=4)
        seen += [one.event for one in found.failures]
        after, more = seen[-1], found.more
    assert seen == [one.event for one in page(journal).failures]


async def test_one_phase(journal):
    assert {one.phase for one in page(journal, phase="work").failures} == {"work"}
    assert len(page(journal, phase="play", limit=3).failures) == 3
    with pytest.raises(UsageError, match="no phase 'x' that has begun: 'play', 'work'"):
        page(journal, phase="x")


async def test_a_conductor_that_told_of_its_error_has_died_once(journal):
    def change(tx):
        for incarnation in (2, 3):
            of = {"conductor": "agent.a", "incarnation": incarnation}
            tx.event("r1", "conductor.failed", {**of, "reason": "os._exit(5) in agent.act", "traceback": ""})
            tx.event("r1", "conductor.exited", {**of, "exit_code": 5, "expected": False})
        tx.event("r1", "conductor.exited", {**of, "incarnation": 4, "exit_code": 5, "expected": False})

    await journal.write(change)
    found = [(each.number, each.reason) for each in failures.deaths_of(journal, "r1")]
    assert found[2:] == [(2, "os._exit(5) in agent.act"), (1, "its process ended with exit code 5")]


@pytest.mark.parametrize("outcome", ["failed", "in work"])
async def test_a_result_has_the_causes_of_each_phase(journal, tmp_path, outcome):
    assignment = Assignment(uid="r1", run=RUN, folder="/")
    found = result.build_result(
        journal=journal, assignment=assignment, outcome=outcome, reason="", folder=tmp_path / "run"
    )
    play, work = found.phases
    assert (play.failed, play.first_failure) == (9, "episode 9: agent.act: KeyError: 9 (a.py:3)")
    assert [(group.number, group.first) for group in play.failures] == [(9, "episode 9")]
    assert (work.failed, work.first_failure) == (2, "tasks: the disk is full")
    assert {group.kind for group in work.failures} == {"part", "attempt", "task"}
    assert work.end == outcome
    assert [(each.number, each.first, each.reason) for each in found.deaths] == [
        (1, "conductor agent.a", "no"),
        (1, "conductor agent.b", "its process ended with exit code -11"),
    ]


async def test_an_attempt_that_was_lost_with_its_process_leaves_the_retries_as_they_are(journal):
    spec = RUN.raw()
    spec["phases"][0] = {"name": "play", "failures": {"retry": 2}, "simulate": SIMULATE}
    assignment = Assignment(uid="r1", run=parse(spec), folder="/")
    attempt = {"phase": 0, "index": 4, "outcome": "crashed", "reason": "SIGKILL", "traceback": ""}
    own = {**attempt, "attempt": 2, "outcome": "failed", "reason": "KeyError"}
    lost = {**attempt, "attempt": 1, "lost": True}
    await journal.write(lambda tx: tx.events("r1", "episode.attempt_ended", [lost, own]))
    assert failures.attempts_of(journal, assignment, 0, ended=IndexRanges()) == {4: ("user",)}
    assert [each.what for each in page(journal).failures][-2:] == [
        "attempt 1 at episode 4",
        "attempt 2 at episode 4",
    ]


async def test_many_tasks_of_a_run_in_work_are_counted_and_not_written(journal, tmp_path, monkeypatch):
    monkeypatch.setattr(result, "MOST_TASKS", 0)
    assignment = Assignment(uid="r1", run=RUN, folder="/")
    build = {"journal": journal, "assignment": assignment, "reason": "", "folder": tmp_path / "run"}
    found = result.build_result(outcome="in work", **build)
    assert found.phases[1].task_outcomes == {"timed_out": 1}
    assert not (tmp_path / "run").exists()
