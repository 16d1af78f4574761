"""The journal that meets errors: none of them raw, nobody left waiting, no record with a hole."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest

from governor.errors import JournalDamaged, JournalError
from governor.journal.disk_reserve import Reserve
from governor.journal.journal import Journal


@pytest.fixture
async def journal(tmp_path):
    used = []
    reserve = Reserve(tmp_path, size=1 << 16, on_used=used.append)
    unreadable = []
    opened = Journal(tmp_path / "governor.db", reserve=reserve, on_unreadable=unreadable.append)
    opened.used, opened.unreadable = used, unreadable
    for uid in ("r1", "r2"):
        await opened.write(lambda tx, uid=uid: tx.submit(uid=uid, key=None, name="n", spec={}, folder="/"))
    yield opened
    await opened.close()


def event(uid, **data):
    return lambda tx: tx.event(uid, "k", data)


def failing(error, code=None):
    def change(tx):
        tx.event("r1", "half", {})
        if code is not None:
            error.sqlite_errorcode = code
        raise error

    return change


def fill(journal, *, more=0):
    """No page can be added to the file but `more`."""
    (pages,) = journal._writing.execute("PRAGMA page_count").fetchone()
    journal._writing.execute(f"PRAGMA max_page_count={pages + more}")


def kinds(journal, uid="r1"):
    return [each.kind for each in journal.events(uid)]


@pytest.mark.parametrize(
    ("error", "code", "raised"),
    [
        (sqlite3.DatabaseError("malformed"), sqlite3.SQLITE_CORRUPT, JournalDamaged),
        (sqlite3.OperationalError("disk I/O error"), sqlite3.SQLITE_IOERR, JournalError),
        (sqlite3.InternalError("what"), None, JournalError),
        (sqlite3.IntegrityError("UNIQUE"), None, JournalError),
    ],
)
async def test_every_error_of_sqlite_is_one_of_the_journal_and_leaves_nothing(journal, error, code, raised):
    with pytest.raises(JournalError, match=str(error)) as caught:
        await journal.write(failing(error, code))
    assert type(caught.value) is raised
    assert kinds(journal) == ["run.accepted"]
    await journal.write(event("r1"))
    assert journal.last_event("r1") == 2


async def outcomes_of_one_group(journal, *changes):
    """They are handed in while the writer is held up by another one, so that they are committed together."""
    held, go_on = asyncio.Event(), threading.Event()

    def hold(_):
        journal._loop.call_soon_threadsafe(held.set)
        assert go_on.wait(30)

    holding = asyncio.ensure_future(journal.write(hold))
    await held.wait()
    writes = [asyncio.ensure_future(journal.write(change)) for change in changes]
    await asyncio.sleep(0)
    go_on.set()
    outcomes = await asyncio.gather(holding, *writes, return_exceptions=True)
    return outcomes[1:]


async def test_an_error_of_the_disk_fails_what_is_committed_together_and_one_of_a_change_that_one_alone(
    journal,
):
    damaged = failing(sqlite3.DatabaseError("malformed"), sqlite3.SQLITE_CORRUPT)
    own = failing(sqlite3.IntegrityError("UNIQUE"))
    for bad, lost in ((own, {1}), (damaged, {0, 1, 2})):
        outcomes = await outcomes_of_one_group(journal, event("r2"), bad, event("r2"))
        assert {n for n, each in enumerate(outcomes) if isinstance(each, JournalError)} == lost


async def test_of_a_run_that_has_lost_a_change_nothing_more_is_recorded(journal):
    fill(journal)
    with pytest.raises(JournalError, match="full"):
        await journal.write(event("r1", large="x" * 100_000), run="r1")
    fill(journal, more=1000)
    with pytest.raises(JournalError, match="nothing more of it"):
        await journal.write(event("r1"), run="r1")
    await journal.write(event("r2"), run="r2")
    assert journal.last_event("r2") == 2
    with pytest.raises(JournalError):
        await journal.write(failing(sqlite3.IntegrityError("UNIQUE")), run="r2")
    with pytest.raises(JournalError, match="nothing more of it"):
        await journal.write(event("r2"), run="r2")
    assert (kinds(journal), kinds(journal, "r2")) == (["run.accepted"], ["run.accepted", "k"])


async def test_on_a_full_disk_the_reserve_is_given_up_and_pending_changes_are_written(journal):
    journal._reserve.take()
    fill(journal)
    journal._reserve._on_used = lambda full: (journal.used.append(full), fill(journal, more=50))
    await journal.write(event("r1", large="x" * 100_000), run="r1")
    assert journal.last_event("r1") == 2
    assert not journal._reserve.path.exists()
    assert [each.exit_code for each in journal.used] == [75]
    fill(journal)
    with pytest.raises(JournalError, match="full"):
        await journal.write(event("r1", large="x" * 100_000), run="r1")
    assert len(journal.used) == 1


async def test_a_writer_that_fails_answers_all_pending_and_later_changes(journal):
    def die(_):
        raise SystemExit("in the writer's thread")

    async with asyncio.timeout(10):
        outcomes = await outcomes_of_one_group(journal, die, event("r1"), event("r2"))
        assert [type(each) for each in outcomes] == [JournalError] * 3
        with pytest.raises(JournalError, match="its writer failed: SystemExit"):
            await journal.write(event("r1"))


async def test_a_rollback_that_fails_answers_all_changes(journal):
    class Broken:
        """A connection that can't roll back."""

        def __getattr__(self, name):
            return getattr(journal_connection, name)

        def execute(self, sql, *more):
            if sql == "ROLLBACK":
                raise sqlite3.OperationalError("no rollback")
            return journal_connection.execute(sql, *more)

    journal_connection, journal._writing = journal._writing, Broken()
    damaged = failing(sqlite3.DatabaseError("malformed"), sqlite3.SQLITE_CORRUPT)
    async with asyncio.timeout(10):
        with pytest.raises(JournalError):
            await journal.write(damaged)
        with pytest.raises(JournalError, match="within a transaction"):
            await journal.write(event("r1"))
    assert kinds(journal) == ["run.accepted"]


async def test_an_unreadable_journal_raises_and_is_reported_to_the_daemon(journal):
    journal._readers._idle[0].close()
    questions = (
        lambda: journal.run("r1"),
        lambda: journal.events("r1"),
        lambda: journal.result("r1"),
        lambda: [*journal.episodes("r1", 0)],
        lambda: journal.find("r"),
        lambda: [*journal.unended()],
    )
    for question in questions:
        with pytest.raises(JournalError, match="cannot be read"):
            question()
    await asyncio.sleep(0)
    assert len(journal.unreadable) == len(questions)


async def test_a_closed_journal_takes_nothing(tmp_path):
    journal = Journal(tmp_path / "governor.db")
    await journal.close()
    with pytest.raises(JournalError, match="closed"):
        await journal.write(event("r1"))
