"""The journal: durable before told, numbered without gaps, recorded once, and honest about a full disk."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import threading

import msgspec
import pytest

from governor.errors import JournalError
from governor.journal.journal import Journal
from governor.journal.readers import values_of_tasks
from governor.messages import EpisodeRecord, TaskRecord, encode
from governor.messages.figures import PhaseFigures
from tests.support.run_results import run_result


def submission(uid="r1", key=None):
    return lambda tx: tx.submit(uid=uid, key=key, name="n", spec={"name": "n"}, folder="/")


def episode(index, value=1.0):
    return EpisodeRecord(
        index=index, worker=0, seed=1, outcome="terminated", value=value, steps=3, seconds=0.1
    )


def task(name, *, run=0, error=""):
    return TaskRecord(task=name, run=run, outcome="succeeded", attempts=1, seconds=0.1, error=error)


async def test_written_records_are_there_after_a_restart(tmp_path):
    first = Journal(tmp_path / "governor.db")
    await first.write(submission())
    writes = [first.write(lambda tx, n=n: tx.event("r1", "k", {"n": n})) for n in range(300)]
    await asyncio.gather(*writes)
    await first.close()
    second = Journal(tmp_path / "governor.db")
    events = second.events("r1")
    assert [event.seq for event in events] == list(range(1, 302))
    assert [event.data["n"] for event in events[1:]] == list(range(300))
    await second.write(lambda tx: tx.event("r1", "k", {}))
    assert second.last_event("r1") == 302
    await second.close()


async def test_another_process_reads_what_tasks_have_returned(journal, tmp_path):
    await journal.write(submission())
    records = [msgspec.structs.replace(task("t", run=run), value={"run": run}) for run in range(3)]
    await journal.write(lambda tx: (tx.tasks("r1", 1, records), tx.tasks("r1", 0, [task("other")])))
    found = [*values_of_tasks(journal.path, "r1", 1)]
    assert [(each.task, each.run, each.value) for each in found] == [("t", n, {"run": n}) for n in range(3)]
    with pytest.raises(JournalError, match="cannot be read"):
        [*values_of_tasks(tmp_path / "none.db", "r1", 1)]


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


async def test_running_figures_are_of_what_is_on_record_when_they_are_kept(journal):
    await journal.write(submission())
    kept = PhaseFigures(outcomes={"terminated": 2})
    await journal.write(lambda tx: tx.figures("r1", 0, encode(kept)))
    assert journal.figures("r1", 0) == (PhaseFigures(), 0), "no episode is on record"
    await journal.write(
        lambda tx: (tx.episodes("r1", 0, [episode(0), episode(1)]), tx.tasks("r1", 0, [task("t")]))
    )
    await journal.write(lambda tx: (tx.figures("r1", 0, encode(kept)), tx.episodes("r1", 0, [episode(2)])))
    figures, after = journal.figures("r1", 0)
    assert figures == kept
    assert [record.index for record in journal.episodes("r1", 0, after=after)] == [2]
    assert journal.figures("r1", 1) == (PhaseFigures(), 0)
    await journal.write(lambda tx: tx.figures("r1", 0, b"of another version"))
    assert journal.figures("r1", 0) == (PhaseFigures(), 0)
    await journal.write(lambda tx: tx.restarted("r1"))
    assert journal._value("SELECT count(*) FROM figures") == 0


async def test_the_same_key_is_the_same_run(journal):
    assert await journal.write(submission("r1", key="monday")) == "r1"
    assert await journal.write(submission("r2", key="monday")) == "r1"
    assert await journal.write(submission("r3")) == "r3"
    assert [row.uid for row in journal.runs(limit=9)] == ["r3", "r1"]


async def test_the_first_record_stays(journal):
    await journal.write(submission())
    four, other, five = episode(4, value=1.0), episode(4, value=9.0), episode(5, value=3.0)
    assert await journal.write(lambda tx: tx.episodes("r1", 0, [four])) == [four]
    assert await journal.write(lambda tx: tx.episodes("r1", 0, [other])) == []
    assert await journal.write(lambda tx: tx.episodes("r1", 0, [other, five, five])) == [five]
    assert await journal.write(lambda tx: tx.episodes("r1", 1, [other])) == [other]
    assert [record.value for record in journal.episodes("r1", 0)] == [1.0, 3.0]
    once, again = task("t"), task("t", error="again")
    assert await journal.write(lambda tx: tx.tasks("r1", 0, [once, again, task("t", run=1)])) == [
        once,
        task("t", run=1),
    ]
    assert await journal.write(lambda tx: tx.tasks("r1", 0, [again])) == []
    assert [*journal.tasks("r1", 0)] == [once, task("t", run=1)]
    assert await journal.write(lambda tx: tx.outcome(run_result(outcome="failed"))) == "failed"
    assert await journal.write(lambda tx: tx.outcome(run_result(outcome="finished"))) == "failed"
    assert journal.result("r1").outcome == "failed"


async def test_only_followers_of_the_run_are_woken(journal):
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
    await journal.write(lambda tx: tx.event("r1", "large", {"x": "y" * 100_000}))
    assert journal.last_event("r1") == 2


FIRST_SCHEMA = """
CREATE TABLE runs (
    position INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE, key TEXT UNIQUE, name TEXT NOT NULL,
    spec BLOB NOT NULL, folder TEXT NOT NULL, submitted_at REAL NOT NULL, started_at REAL, ended_at REAL,
    outcome TEXT, reason TEXT NOT NULL DEFAULT '', result BLOB
);
CREATE TABLE events (
    uid TEXT NOT NULL, seq INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (uid, seq)
) WITHOUT ROWID;
CREATE TABLE episodes (
    position INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL, phase INTEGER NOT NULL,
    episode INTEGER NOT NULL, record BLOB NOT NULL, UNIQUE (uid, phase, episode)
);
CREATE TABLE tasks (
    position INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL, phase INTEGER NOT NULL, task TEXT NOT NULL,
    run INTEGER NOT NULL, record BLOB NOT NULL, UNIQUE (uid, phase, task, run)
);
PRAGMA user_version=1;
"""


@pytest.fixture
def old_journal(tmp_path):
    """As the first schema kept it: one run with an ended episode and two ended tasks, in the order b, a."""
    connection = sqlite3.connect(tmp_path / "governor.db")
    connection.executescript(FIRST_SCHEMA)
    connection.execute(
        "INSERT INTO runs (uid, name, spec, folder, submitted_at) VALUES ('old', 'n', ?, '/', 1.0)",
        (b"\x80",),
    )
    encoded = msgspec.msgpack.encode
    told = [
        ("run.accepted", {"name": "n", "phases": 0}),
        ("task.ended", {"phase": 0, "record": msgspec.to_builtins(task("b"))}),
    ]
    for seq, (kind, data) in enumerate(told, start=1):
        connection.execute("INSERT INTO events VALUES ('old', ?, 1.0, ?, ?)", (seq, kind, encoded(data)))
    connection.execute(
        "INSERT INTO episodes (uid, phase, episode, record) VALUES ('old', 0, 4, ?)", (encoded(episode(4)),)
    )
    for name in "ba":
        connection.execute(
            "INSERT INTO tasks (uid, phase, task, run, record) VALUES ('old', 0, ?, 0, ?)",
            (name, encoded(task(name))),
        )
    connection.commit()
    connection.close()
    return tmp_path / "governor.db"


async def test_the_journal_of_an_older_governor_is_taken_over(old_journal):
    for _ in range(2):
        opened = Journal(old_journal)
        assert opened.run("old").parent is None
        assert [event.kind for event in opened.events("old")] == ["run.accepted", "task.ended"]
        assert opened.events("old")[1].data == {"phase": 0, "record": msgspec.to_builtins(task("b"))}
        assert ([*opened.episodes("old", 0)], [*opened.tasks("old", 0)]) == (
            [episode(4)],
            [task("b"), task("a")],
        )
        await opened.close()
    opened = Journal(old_journal)
    assert await opened.write(lambda tx: tx.tasks("old", 0, [task("a"), task("c")])) == [task("c")]
    assert await opened.write(lambda tx: tx.episodes("old", 0, [episode(4)])) == []
    assert [event.seq for event in opened.events("old", after=1)] == [2, 3]
    await opened.write(lambda tx: tx.submit(uid="new", key=None, name="n", spec={}, folder="/", parent="old"))
    assert opened.run("new").parent == "old"
    assert await opened.write(lambda tx: tx.resumed_by("old")) == "new"
    await opened.write(lambda tx: tx.ended("new"))
    assert await opened.write(lambda tx: tx.resumed_by("old")) is None
    await opened.close()


async def test_events_of_one_row_are_read_from_any_number_on(journal):
    await journal.write(submission())
    await journal.write(lambda tx: tx.events("r1", "k", [{"n": n} for n in range(5)]))
    records = [task(f"t{n}") for n in range(3)]
    await journal.write(lambda tx: tx.tasks("r1", 2, records))
    ended = [{"phase": 2, "record": msgspec.to_builtins(record)} for record in records]
    expected = [{"name": "n", "phases": 0}, *({"n": n} for n in range(5)), *ended]
    for after in range(10):
        found = journal.events("r1", after=after)
        assert [event.seq for event in found] == list(range(after + 1, 10))
        assert [event.data for event in found] == expected[after:]
    assert [event.seq for event in journal.events("r1", limit=3)] == [1, 2, 3, 4, 5, 6]
    assert [event.data for event in journal.events_of("r1", ("task.ended",))] == ended


async def test_reads_in_threads_do_not_block_others(journal):
    """Two reads that have begun and are not over: neither keeps the other from the file, or from what is new."""
    for uid in ("r1", "r2"):
        await journal.write(submission(uid))
    here = begun(journal._rows("SELECT uid FROM runs"))
    await asyncio.to_thread(journal.checkpoint)
    del here
    there = await asyncio.to_thread(lambda: begun(journal._rows("SELECT uid FROM runs")))
    await journal.write(lambda tx: tx.event("r1", "k", {}))
    assert journal.latest("r1").kind == "k"
    del there


def begun(reading):
    next(reading)
    return reading


async def test_inherited_records_are_no_events(journal):
    await journal.write(submission())
    await journal.write(lambda tx: tx.tasks("r1", 0, [task("t")], ended=False))
    assert [*journal.tasks("r1", 0)] == [task("t")]
    assert [event.kind for event in journal.events("r1")] == ["run.accepted"]


async def test_a_run_that_is_not_on_record_has_no_events(journal):
    with pytest.raises(LookupError, match="r9"):
        await journal.write(lambda tx: tx.event("r9", "k", {}))
    assert journal.events("r9") == []


async def test_the_journal_of_a_newer_governor_is_left_alone(tmp_path):
    connection = sqlite3.connect(tmp_path / "governor.db")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(JournalError, match="schema 99"):
        Journal(tmp_path / "governor.db")


async def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "governor.db").write_text("my diary, in prose, of more than a hundred characters" * 9)
    with pytest.raises(JournalError, match="not a database"):
        Journal(tmp_path / "governor.db")


async def test_reads_during_the_close_are_interrupted_without_a_crash(tmp_path):
    """As they do whose tasks were cancelled. SQLite freed what was in use, and the process was gone: once in some ten times."""
    for number in range(60):
        journal = Journal(tmp_path / f"{number}.db")
        await journal.write(submission())
        begun = threading.Event()
        read = functools.partial(read_on, journal, begun)
        threads = [asyncio.create_task(asyncio.to_thread(read)) for _ in range(4)]
        await asyncio.to_thread(begun.wait, 10)
        await journal.close()
        for ended in await asyncio.gather(*threads, return_exceptions=True):
            assert isinstance(ended, JournalError)


def read_on(journal, begun):
    while True:
        assert journal.events("r1")
        begun.set()
