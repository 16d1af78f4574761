"""Failures on record: counted by cause, one traceback of each kind, found without reading what did not fail."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest

from governor.errors import JournalError
from governor.journal import failures, schema
from governor.journal.journal import Journal
from governor.messages import EpisodeRecord, TaskRecord

STORED = Path(__file__).with_name("journal_schema_6.sql")


@pytest.fixture
async def journal(tmp_path):
    opened = Journal(tmp_path / "governor.db")
    spec = {"name": "n", "phases": [{"name": "a"}, {"name": "b"}]}
    await opened.write(lambda tx: tx.submit(uid="r1", key=None, name="n", spec=spec, folder="/"))
    yield opened
    await opened.close()


def episode(index, reason="", outcome=None):
    outcome = outcome or ("failed" if reason else "terminated")
    return EpisodeRecord(
        index=index, worker=0, seed=1, outcome=outcome, value=1.0, steps=3, seconds=0.1, reason=reason
    )


def no_map(number, line=28):
    return f"environment.reset: AssertionError: no map {number} (maze.py:{line})"


def counts(journal, phase=0):
    return [(cause.kind, cause.number, cause.event) for cause in journal.causes("r1", phase)]


async def test_failures_are_counted_by_cause_whatever_the_numbers_in_their_text(journal):
    records = [episode(0), episode(1, no_map(1)), episode(2, no_map(22)), episode(3, no_map(3, line=30))]
    await journal.write(lambda tx: tx.episodes("r1", 0, records))
    await journal.write(
        lambda tx: tx.episodes("r1", 0, [episode(4, no_map(4)), episode(5, no_map(5), "crashed")])
    )
    assert counts(journal) == [("episode", 3, 3), ("episode", 1, 5), ("episode", 1, 7)]
    first, *_ = journal.causes("r1", 0)
    assert (first.first["index"], first.first["reason"]) == (1, no_map(1))
    assert counts(journal, 1) == []


async def test_what_is_reported_twice_counts_once(journal):
    for _ in range(2):
        await journal.write(lambda tx: tx.episodes("r1", 0, [episode(1, no_map(1))]))
    assert counts(journal) == [("episode", 1, 2)]
    assert [event.seq for event in journal.failed_events("r1")] == [2]


async def test_tasks_and_their_attempts_are_counted_and_what_follows_from_them_is_not(journal):
    def change(tx):
        attempt = {"phase": 1, "task": "t", "run": 0, "attempt": 1, "outcome": "failed", "error": "KeyError"}
        tx.events("r1", "task.attempt_ended", [attempt])
        ends = ("failed", "upstream_failed", "cancelled", "succeeded")
        records = [
            TaskRecord(task=name, run=0, outcome=end, error="KeyError")
            for name, end in zip("tuvw", ends, strict=True)
        ]
        tx.tasks("r1", 1, records)

    await journal.write(change)
    assert counts(journal, 1) == [("attempt", 1, 2), ("task", 1, 3)]
    assert [event.seq for event in journal.failed_events("r1")] == [2, 3, 4, 5, 6]


async def test_a_run_that_is_restarted_has_no_failures_yet(journal):
    await journal.write(lambda tx: tx.episodes("r1", 0, [episode(1, no_map(1))]))
    await journal.write(lambda tx: tx.restarted("r1"))
    assert counts(journal) == []


async def test_causes_without_end_are_bounded_and_still_counted(journal, monkeypatch):
    monkeypatch.setattr(failures, "MOST", 5)
    letters = "abcdefghij"
    records = [episode(n, f"ValueError: {letters[n % 10]}") for n in range(30)]
    for record in records:
        await journal.write(lambda tx, record=record: tx.episodes("r1", 0, [record]))
    found = journal.causes("r1", 0)
    assert len(found) == 6
    assert [cause.others for cause in found] == [False] * 5 + [True]
    assert sum(cause.number for cause in found) == 30


async def test_equal_tracebacks_are_one_row_and_their_number_is_bounded(journal, monkeypatch):
    monkeypatch.setattr(failures, "MOST", 5)

    def change(tx):
        for n in range(20):
            tx.traceback("r1", f"{n % 10:016x}", f"Traceback {n % 10}", first=False)
        for n in range(10, 30):
            tx.traceback("r1", f"{n:016x}", f"Traceback {n}", first=True)

    await journal.write(change)
    [(number,)] = journal._rows("SELECT count(*) FROM tracebacks")
    assert number == 10
    assert journal.traceback("r1", f"{4:016x}") == "Traceback 4"
    assert journal.traceback("r1", f"{5:016x}") is None
    assert journal.traceback("r1", f"{10:016x}") == "Traceback 10"


async def test_failures_are_found_by_an_index_of_the_rows_that_have_some(journal):
    question = f"EXPLAIN QUERY PLAN {failures_question()}"
    plan = " ".join(row[3] for row in journal._rows(question, ("r1", 0, None, None)))
    assert "failed_events" in plan


def failures_question():
    from governor.journal.tables import EVENTS_OF_RUN

    return EVENTS_OF_RUN + failures.FAILED


async def test_a_failure_more_costs_the_same_after_many(journal):
    """Operations of the journal, counted."""
    records = [episode(n, no_map(n)) for n in range(5_000)]
    steps = []

    def write(record):
        journal._writing.set_progress_handler(lambda: steps.append(1) and 0, 1)
        return lambda tx: tx.episodes("r1", 0, [record])

    await journal.write(lambda tx: tx.episodes("r1", 0, records[:10]))
    await journal.write(write(records[10]))
    few = len(steps)
    await journal.write(lambda tx: tx.episodes("r1", 0, records[11:-1]))
    steps.clear()
    await journal.write(write(records[-1]))
    assert len(steps) < 1.5 * few


async def test_pruning_takes_them_too(journal):
    def change(tx):
        tx.episodes("r1", 0, [episode(1, no_map(1))])
        tx.traceback("r1", "0" * 16, "Traceback", first=True)
        tx.ended("r1")
        assert tx.mark_pruned(["r1"]) == ["r1"]

    await journal.write(change)
    while await journal.write(lambda tx: tx.remove_rows("r1", 100)):
        pass
    for table in ("causes", "tracebacks"):
        assert [*journal._rows(f"SELECT count(*) FROM {table}")] == [(0,)]  # a name of ours


@pytest.fixture
def old(tmp_path):
    """A journal of schema 6, as the governor of that time wrote it."""
    connection = sqlite3.connect(tmp_path / "old.db")
    connection.executescript(STORED.read_text())
    connection.close()
    return tmp_path / "old.db"


async def test_a_journal_of_schema_6_tells_of_its_failures(old):
    for _ in range(2):
        schema.examine(old)
    journal = Journal(old)
    events = [*journal.failed_events("old")]
    assert [event.kind for event in events if event.data.get("episode", {}).get("reason")] == [
        "episode.ended"
    ] * 2
    assert [event.kind for event in events][-4:] == [
        "task.attempt_ended",
        "task.ended",
        "task.ended",
        "conductor.failed",
    ]
    rows = [*journal._rows("SELECT last, failures FROM events WHERE failures > 0")]
    assert rows == [(6, 2), (10, 1), (12, 1), (13, 1)]
    assert journal.causes("old", 0) == []
    await journal.write(lambda tx: tx.episodes("old", 0, [episode(9, no_map(9))]))
    assert [cause.number for cause in journal.causes("old", 0)] == [1]
    await journal.close()


def test_a_migration_that_fails_leaves_the_journal_of_schema_6(old, monkeypatch):
    broken = {**schema.MIGRATIONS, 6: schema.MIGRATIONS[6] + "INSERT INTO nowhere VALUES (1);"}
    monkeypatch.setattr(schema, "MIGRATIONS", broken)
    with pytest.raises(JournalError, match="nowhere"):
        schema.examine(old)
    connection = sqlite3.connect(old)
    assert connection.execute("PRAGMA user_version").fetchone() == (6,)
    assert not [*connection.execute("SELECT 1 FROM sqlite_master WHERE name IN ('causes', 'failed_events')")]
    connection.close()


def test_data_that_cannot_be_read_have_no_failures():
    assert failures.failures_packed("task.ended", b"\xc1") == 0
    assert failures.failures_packed("part.ended", msgspec.msgpack.encode([{"fault": "full"}])) == 1
