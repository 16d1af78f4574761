"""The tasks of a run that resumes another: recorded some at a time, and seen by nobody before the run is accepted."""

from __future__ import annotations

import asyncio

import pytest

from governor.errors import JournalError
from governor.journal.inheritance import TOGETHER
from governor.journal.journal import Journal
from governor.journal.retention import Pruner
from governor.messages import TaskRecord
from governor.run_file.load import parse
from governor.runs.record.resume import find_kept_work
from governor.runs.record.staging import finish_interrupted, staging_of

TASKS = 5 * TOGETHER
RUN = parse(
    {"name": "r", "phases": [{"name": "p", "tasks": [{"id": "t", "call": "m:f", "repeat": TASKS + 1}]}]}
)


@pytest.fixture
async def kept(journal, tmp_path):
    """Of a run `old` of which one task run is missing."""

    def change(tx):
        tx.submit(uid="old", key=None, name="r", spec=RUN.raw(), folder="/")
        for first in range(0, TASKS, 500):
            records = [
                TaskRecord(task="t", run=run, outcome="succeeded", attempts=1, seconds=0.1)
                for run in range(first, first + 500)
            ]
            tx.tasks("old", 0, records)

    await journal.write(change)
    (tmp_path / "old").mkdir()
    return find_kept_work(journal, journal.run("old"), RUN, tmp_path / "old")


async def accept(journal, kept):
    def change(tx):
        tx.submit(uid="new", key=None, name="r", spec=RUN.raw(), folder="/", parent="old")
        kept.record(tx, "new")

    await journal.write(change)


async def rows_of(journal, uid):
    """Rows of each table that has any of the run."""
    found = {}
    for table in ("records", "ended_tasks", "events"):
        question = f"SELECT count(*) FROM {table} JOIN runs ON run = runs.position WHERE uid = ?"
        if number := journal._value(question, uid):
            found[table] = number
    return found


async def test_others_write_while_many_tasks_are_taken_over(journal, kept):
    bites = []
    write = journal.write

    def noted(change, **more):
        def made(tx):
            before = tx._connection.total_changes
            result = change(tx)
            bites.append(tx._connection.total_changes - before)
            return result

        return write(made, **more)

    journal.write = noted
    taking = asyncio.create_task(kept.record_tasks(journal, "new"))
    others = 0
    while not taking.done():
        await write(lambda tx: tx.event("old", "x", {}))
        others += 1
    await taking
    assert others >= TASKS // TOGETHER
    assert max(bites) < 1.1 * TOGETHER
    await accept(journal, kept)
    assert sorted(record.run for record in journal.tasks("new", 0)) == [*range(TASKS)]
    assert journal.tasks_ended("new", 0) == TASKS
    assert (journal.line("new").ended_at, journal.line("new").pruned_at) == (None, None)
    assert [event.seq for event in journal.events("new")] == [1, 2]


async def test_nobody_finds_a_run_before_it_is_accepted(journal, kept):
    await kept.record_tasks(journal, "new")
    assert journal.find("new") == []
    assert [run.uid for run in journal.runs(limit=9)] == ["old"]
    assert [run.uid for run in journal.unended()] == ["old"]
    assert journal.ended() == []
    assert journal.marked() == []
    await accept(journal, kept)
    journal.reserved.discard("new")
    assert journal.find("new") == ["new"]
    assert [run.uid for run in journal.unended()] == ["old", "new"]
    assert journal.marked() == []


async def test_a_run_that_is_accepted_while_others_are_looked_for_is_not_removed(journal, kept, monkeypatch):
    await kept.record_tasks(journal, "new")
    rows, accepted = Journal._rows, []

    def then_accepted(self, question, parameters=()):
        found = list(rows(self, question, parameters))
        if not accepted:  # which looks for rows, too
            accepted.append("new")
            asyncio.run_coroutine_threadsafe(accept(journal, kept), loop).result(20)
            journal.reserved.discard("new")
        return found

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(Journal, "_rows", then_accepted)
    assert await asyncio.to_thread(journal.marked) == []


async def test_what_a_crash_leaves_of_a_run_that_was_not_accepted_is_removed(kept, journal, tmp_path):
    await kept.record_tasks(journal, "new")
    assert (await rows_of(journal, "new"))["ended_tasks"] == TASKS
    staging = staging_of(tmp_path / "runs" / "new")
    staging.mkdir(parents=True)
    later = Journal(journal.path)
    try:
        finish_interrupted(later, tmp_path / "runs")
        await Pruner(later, tmp_path / "runs", rest=0).finish()
        assert not staging.exists()
        assert not staging_of(tmp_path / "runs" / "new").exists()
        assert await rows_of(later, "new") == {}
        assert later.find("new") == []
    finally:
        await later.close()


async def test_a_uid_is_accepted_once(journal, kept):
    with pytest.raises(JournalError, match="on record already"):
        await journal.write(lambda tx: tx.submit(uid="old", key=None, name="x", spec={}, folder="/"))
    assert journal.run("old").name == "r"
