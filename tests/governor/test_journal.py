"""The journal: durable before told, numbered without gaps, recorded once, and honest about a full disk."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from governor import journal_tables
from governor.errors import JournalError
from governor.journal import Journal
from governor.messages import EpisodeRecord, RunResult, TaskRecord


@pytest.fixture
async def journal(tmp_path):
    opened = Journal(tmp_path / "governor.db")
    yield opened
    await opened.close()


def submission(uid="r1", key=None):
    return lambda tx: tx.submit(uid=uid, key=key, name="n", spec={"name": "n"}, folder="/")


def episode(index, value=1.0):
    return EpisodeRecord(
        index=index, worker=0, seed=1, outcome="terminated", value=value, steps=3, seconds=0.1
    )


def result(outcome):
    return RunResult(
        uid="r1",
        name="n",
        outcome=outcome,
        reason="",
        submitted_at=1.0,
        started_at=None,
        ended_at=2.0,
        phases=(),
        folder="/",
    )


async def test_what_was_written_is_there_after_a_new_start(tmp_path):
    first = Journal(tmp_path / "governor.db")
    await first.write(submission())
    writes = [first.write(lambda tx, n=n: tx.event("r1", "k", {"n": n})) for n in range(300)]
    await asyncio.gather(*writes)
    await first.close()
    second = Journal(tmp_path / "governor.db")
    events = second.events("r1")
    assert [event.seq for event in events] == list(range(1, 302))
    assert [event.data["n"] for event in events[1:]] == list(range(300))
    assert (await second.write(lambda tx: tx.event("r1", "k", {}))).seq == 302
    await second.close()


async def test_many_writers_share_one_commit(journal):
    commits = []
    journal._writing.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    await journal.write(submission())
    await asyncio.gather(*(journal.write(lambda tx: tx.event("r1", "k", {})) for _ in range(200)))
    assert len(commits) < 100


async def test_a_change_that_fails_is_taken_back_alone(journal):
    await journal.write(submission())

    def half(tx):
        tx.event("r1", "half", {})
        raise LookupError("in the middle")

    good = journal.write(lambda tx: tx.event("r1", "whole", {}))
    bad = journal.write(half)
    also_good = journal.write(lambda tx: tx.event("r1", "whole", {}))
    outcomes = await asyncio.gather(good, bad, also_good, return_exceptions=True)
    assert isinstance(outcomes[1], LookupError)
    assert [event.kind for event in journal.events("r1")] == ["run.accepted", "whole", "whole"]
    assert [event.seq for event in journal.events("r1")] == [1, 2, 3]


async def test_the_same_key_is_the_same_run(journal):
    assert await journal.write(submission("r1", key="monday")) == "r1"
    assert await journal.write(submission("r2", key="monday")) == "r1"
    assert await journal.write(submission("r3")) == "r3"
    assert [row.uid for row in journal.runs(limit=9)] == ["r3", "r1"]


async def test_the_first_record_stays(journal):
    await journal.write(submission())
    assert await journal.write(lambda tx: tx.episode("r1", 0, episode(4, value=1.0)))
    assert not await journal.write(lambda tx: tx.episode("r1", 0, episode(4, value=9.0)))
    assert await journal.write(lambda tx: tx.episode("r1", 1, episode(4, value=2.0)))
    assert [record.value for record in journal.episodes("r1", 0)] == [1.0]
    task = TaskRecord(task="t", run=0, outcome="succeeded", attempts=1, seconds=0.1)
    assert await journal.write(lambda tx: tx.task("r1", 0, task))
    assert not await journal.write(lambda tx: tx.task("r1", 0, task))
    assert await journal.write(lambda tx: tx.outcome(result("failed"))) == "failed"
    assert await journal.write(lambda tx: tx.outcome(result("finished"))) == "failed"
    assert journal.result("r1").outcome == "failed"


async def test_whoever_follows_a_run_is_woken_and_nobody_else(journal):
    await journal.write(submission("r1"))
    await journal.write(submission("r2"))
    with journal.arrivals("r1") as first, journal.arrivals("r2") as second:
        await journal.write(lambda tx: tx.event("r1", "k", {}))
        assert first.is_set()
        assert not second.is_set()
        journal.wake_followers()
        assert second.is_set()
    assert not journal._followers


async def test_a_full_disk_is_an_error_and_nothing_is_half_written(journal):
    await journal.write(submission())
    (pages,) = journal._writing.execute("PRAGMA page_count").fetchone()
    journal._writing.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(JournalError, match="full"):
        await journal.write(lambda tx: tx.event("r1", "large", {"x": "y" * 100_000}))
    assert [event.kind for event in journal.events("r1")] == ["run.accepted"]
    journal._writing.execute(f"PRAGMA max_page_count={pages + 1000}")
    assert (await journal.write(lambda tx: tx.event("r1", "large", {"x": "y" * 100_000}))).seq == 2


async def test_the_journal_of_an_older_governor_is_taken_over(tmp_path):
    connection = sqlite3.connect(tmp_path / "governor.db")
    first = journal_tables.SCHEMA.replace("result BLOB,\n    parent TEXT", "result BLOB")
    assert "parent" not in first
    connection.executescript(f"{first} PRAGMA user_version=1;")
    connection.execute(
        "INSERT INTO runs (uid, name, spec, folder, submitted_at) VALUES ('old', 'n', ?, '/', 1.0)",
        (b"\x80",),
    )
    connection.commit()
    connection.close()
    for _ in range(2):
        opened = Journal(tmp_path / "governor.db")
        assert opened.run("old").parent is None
        await opened.close()
    opened = Journal(tmp_path / "governor.db")
    await opened.write(lambda tx: tx.submit(uid="new", key=None, name="n", spec={}, folder="/", parent="old"))
    assert opened.run("new").parent == "old"
    assert await opened.write(lambda tx: tx.resumed_by("old")) == "new"
    await opened.write(lambda tx: tx.ended("new"))
    assert await opened.write(lambda tx: tx.resumed_by("old")) is None
    await opened.close()


async def test_the_journal_of_a_newer_governor_is_left_alone(tmp_path):
    connection = sqlite3.connect(tmp_path / "governor.db")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(JournalError, match="schema 99"):
        Journal(tmp_path / "governor.db")


async def test_what_is_no_database_is_said_to_be_none(tmp_path):
    (tmp_path / "governor.db").write_text("my diary, in prose, of more than a hundred characters" * 9)
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "governor.db")
