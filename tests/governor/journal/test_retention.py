"""Ended runs that are let go: which, and that nothing of them is left whenever the pruner dies."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import NoSuchRun, UsageError
from governor.journal import removal, retention, schema
from governor.journal.journal import Journal
from governor.journal.retention import (
    DAY_SECONDS,
    Pruner,
    RetentionPolicy,
    choose,
    requested_policy,
)
from governor.journal.runs_table import RunsTable
from governor.messages import EpisodeRecord, PhaseResult, TaskRecord
from governor.runs.record.result import FILES, save_result, whole_result
from tests.support.run_results import run_result

NOW = 1_000_000_000.0
BOUND = st.none() | st.integers(0, 12)


class Table(RunsTable):
    """The runs that ended these days ago, the newest first, among one in work and one that was pruned."""

    def __init__(self, ages):
        self._connection = sqlite3.connect(":memory:")
        self._connection.executescript(schema.SCHEMA)
        ended = [(f"r{number}", NOW - age * DAY_SECONDS, None) for number, age in enumerate(ages)]
        for row in [*ended[::-1], ("pruned", NOW - 99 * DAY_SECONDS, NOW), ("in work", None, None)]:
            self._connection.execute(
                "INSERT INTO runs (uid, name, spec, folder, submitted_at, ended_at, pruned_at)"
                " VALUES (?, 'n', x'80', '/', 1.0, ?, ?)",
                row,
            )

    def _rows(self, question, parameters=()):
        return self._connection.execute(question, parameters)


@given(ages=st.lists(st.floats(0, 12), max_size=12), runs=BOUND, days=BOUND)
def test_a_run_goes_when_neither_bound_keeps_it(ages, runs, days):
    ages.sort()
    ended = [(f"r{number}", NOW - age * DAY_SECONDS) for number, age in enumerate(ages)]
    gone = choose(Table(ages), keep=RetentionPolicy(runs=runs, days=days), now=NOW)
    kept_by_runs = {uid for uid, _ in ended[: runs if runs is not None else 0]}
    kept_by_days = {uid for uid, at in ended if days is not None and at >= NOW - days * DAY_SECONDS}
    kept = kept_by_runs | kept_by_days
    assert set(gone) == ({uid for uid, _ in ended} - kept if (runs, days) != (None, None) else set())
    assert gone == sorted(gone, key=lambda uid: -int(uid[1:])), "oldest first"


@pytest.mark.parametrize("bounds", [{"runs": -1}, {"days": -0.5}, {"days": float("nan")}, {"runs": 10**10}])
def test_bounds_that_make_no_sense_are_refused(bounds):
    with pytest.raises(UsageError, match=r"(runs|days) to keep are from 0 to 1,000,000,000, not"):
        RetentionPolicy(**bounds)


def test_a_request_without_bounds_asks_for_those_of_the_configuration():
    assert requested_policy(None, None, otherwise=RetentionPolicy(runs=3)) == RetentionPolicy(runs=3)
    assert requested_policy(None, 2.0, otherwise=RetentionPolicy(runs=3)) == RetentionPolicy(days=2.0)
    with pytest.raises(UsageError, match="--keep-runs"):
        requested_policy(None, None, otherwise=RetentionPolicy())


def result_of(uid, *, tasks=()):
    phases = (PhaseResult(name="p", mode="-", end="tasks_done", metrics={"m": 1.0}, tasks=tuple(tasks)),)
    return run_result(uid, phases=phases)


def task(number, value=None):
    return TaskRecord(
        task=f"t{number}",
        run=0,
        outcome="succeeded",
        attempts=1,
        seconds=0.1,
        value=value,
        metrics={"m": 0.5},
    )


def episode(index):
    return EpisodeRecord(
        index=index, worker=0, seed=1, outcome="terminated", value=1.0, steps=3, seconds=0.1, reason="r" * 50
    )


async def make(journal, folder, uid, *, work=300, ended=True, parent=None):
    """A run with its files, of some hundred pages."""

    def change(tx):
        key, spec = f"key of {uid}", {"name": "n"}
        tx.submit(uid=uid, key=key, name="n", spec=spec, folder="/", parent=parent, digest=b"d")
        for start in range(0, work, 50):
            tx.episodes(uid, 0, [episode(start + n) for n in range(50)])
            tx.tasks(uid, 1, [task(start + n) for n in range(50)])
            for _ in range(20):
                tx.event(uid, "k", {"x": "y" * 500})

    await journal.write(change)
    files = folder / "runs" / uid / "results"
    files.mkdir(parents=True)
    (files / "t.json").write_bytes(bytes(10_000))
    if ended:
        await journal.write(lambda tx: (tx.outcome(result_of(uid)), tx.ended(uid)))


@pytest.fixture
async def journal(tmp_path):
    """A journal with four runs: a, b, c have ended in this order, d is in work and resumes b."""
    journal = Journal(tmp_path / "governor.db")
    for uid in ("a", "b", "c"):
        await make(journal, tmp_path, uid)
    await make(journal, tmp_path, "d", ended=False, parent="b")
    yield journal
    await journal.close()


def rows_of(journal):
    """Rows of each table, by run."""
    tables = ("events", "records", "ended_episodes", "ended_tasks")
    query = "SELECT uid, count(*) FROM {} JOIN runs ON run = runs.position GROUP BY uid"
    return {table: dict(journal._writing.execute(query.format(table)).fetchall()) for table in tables}


def assert_gone(journal, folder, gone):
    rows = rows_of(journal)
    for uid in "abcd":
        assert (folder / "runs" / uid).exists() == (uid not in gone)
        assert {table for table, found in rows.items() if uid in found} == (
            set() if uid in gone else {"events", "records", "ended_episodes", "ended_tasks"}
        )
        assert (journal.find(uid) == []) == (uid in gone)
        assert journal.of_key(f"key of {uid}") == uid, "keys stay known"
    assert journal.marked() == []
    assert journal._writing.execute("PRAGMA freelist_count").fetchone() == (0,)
    assert journal._writing.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_runs_beyond_the_bounds_are_removed_with_their_files_and_the_journal_shrinks(journal, tmp_path):
    pruner = Pruner(journal, tmp_path / "runs")
    journal.checkpoint()
    before = journal.path.stat().st_size
    seen = await pruner.prune(RetentionPolicy(runs=1), dry_run=True)
    assert (seen.uids, seen.dry_run) == (("a", "b"), True)
    assert seen.bytes >= 20_000
    assert journal.find("a") == ["a"]
    told = await pruner.prune(RetentionPolicy(runs=1))
    assert (told.uids, told.bytes) == (seen.uids, seen.bytes)
    assert journal.find("a") == [], "marked: it can not be found any more"
    await pruner.finish()
    assert_gone(journal, tmp_path, {"a", "b"})
    assert journal.path.stat().st_size < 0.7 * before
    assert journal.pruned("a").pruned_at is not None
    assert [row.uid for row in journal.runs(limit=9)] == ["d", "c"]
    assert len([*journal.episodes("d", 0)]) == 300
    assert (await pruner.prune(RetentionPolicy(runs=1))).uids == ()


async def test_a_run_that_was_pruned_is_resumed_by_none_and_its_key_starts_none(journal, tmp_path):
    pruner = Pruner(journal, tmp_path / "runs")
    await pruner.prune(RetentionPolicy(runs=0))
    await pruner.finish()
    assert_gone(journal, tmp_path, {"a", "b", "c"})
    with pytest.raises(NoSuchRun, match="pruned"):
        await journal.write(
            lambda tx: tx.submit(uid="e", key=None, name="n", spec={}, folder="/", parent="a")
        )
    again = await journal.write(
        lambda tx: tx.submit(uid="e", key="key of a", name="n", spec={}, folder="/", digest=b"d")
    )
    assert (again, journal.run("a").digest) == ("a", b"d")


PRUNE = """
import asyncio, os, signal, sys
from pathlib import Path
from governor.journal import retention, tables
from governor.journal.journal import Journal

folder = Path(sys.argv[1])
retention.ROWS, retention.PAGES = 40, 20

def counted(function):
    def call(*arguments, **more):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)
    return call

for name in ("mark_pruned", "remove_rows", "_removed", "give_back"):
    setattr(tables.Transaction, name, counted(getattr(tables.Transaction, name)))
os.rmdir, os.unlink, Path.rename = map(counted, (os.rmdir, os.unlink, Path.rename))

async def main():
    journal = Journal(folder / "governor.db")
    known = {row.uid: len([*journal.episodes(row.uid, 0)]) for row in journal.runs(limit=9)}
    assert known in ({"d": 50, "c": 50}, {uid: 50 for uid in "abcd"}), known
    for uid in known:
        assert (folder / "runs" / uid / "results" / "t.json").exists(), uid
    for path in (folder / "runs").glob("[!.]*"):
        assert (path / "results" / "t.json").exists(), "the folder of a run is whole, or has another name"
    pruner = retention.Pruner(journal, folder / "runs")
    await pruner.prune(retention.RetentionPolicy(runs=1))
    await pruner.finish()
    await journal.close()

kills = 0
while True:
    child = os.fork()
    if child == 0:
        left = 1 + kills % 4
        asyncio.run(main())
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != -signal.SIGKILL:
        break
    kills += 1
print(code, kills)
"""


async def test_a_pruner_that_is_killed_at_any_step_is_finished_by_the_next_start(tmp_path):
    """Each start makes one to four steps - a change of the journal, a file, a folder - and is killed before the next one."""
    journal = Journal(tmp_path / "governor.db")
    for uid in ("a", "b", "c", "d"):
        await make(journal, tmp_path, uid, work=50, ended=uid != "d")
    await journal.close()
    command = [sys.executable, "-c", PRUNE, str(tmp_path)]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, timeout=60
    )
    code, kills = map(int, done.stdout.splitlines()[-1].split())
    assert (code, done.stderr) == (0, "")
    assert kills > 8
    journal = Journal(tmp_path / "governor.db")
    assert_gone(journal, tmp_path, {"a", "b"})
    await journal.close()


def refused(*_, **__):
    raise PermissionError(13, "Permission denied")


async def test_files_that_cannot_be_removed_are_tried_again(journal, tmp_path, monkeypatch):
    pruner = Pruner(journal, tmp_path / "runs")
    with monkeypatch.context() as stubborn:
        stubborn.setattr(removal.os, "unlink", refused)
        await pruner.prune(RetentionPolicy(runs=2))
        await pruner.finish()
        assert journal.marked() == ["a"]
    await pruner.finish()
    assert_gone(journal, tmp_path, {"a"})


async def test_the_pruner_keeps_to_the_bounds_when_it_is_woken(journal, tmp_path):
    keep = RetentionPolicy()
    pruner = Pruner(journal, tmp_path / "runs")
    serving = asyncio.create_task(pruner.serve(lambda: keep))
    await asyncio.sleep(0)
    assert journal.find("a") == ["a"]
    keep = RetentionPolicy(runs=0)
    pruner.wake()
    async with asyncio.timeout(30):
        while journal.find("c") or journal.marked():
            await journal.write(lambda _: None)
    serving.cancel()
    await asyncio.wait({serving})
    assert journal.run("c").spec == {}


@pytest.mark.parametrize(("number", "is_file"), [(3, False), (2000, True)])
async def test_a_large_result_is_in_a_file_and_without_its_tasks_in_the_journal(
    journal, tmp_path, number, is_file
):
    large = result_of("d", tasks=[task(n, value=float("nan") if n == 1 else n) for n in range(number)])
    folder = tmp_path / "runs" / "d"
    file = save_result(large, folder)
    assert (file is not None) == is_file
    await journal.write(lambda tx: tx.outcome(large, file=file))
    assert repr(whole_result(journal, "d", folder)) == repr(large)
    (blob,) = journal._writing.execute("SELECT result FROM runs WHERE uid = 'd'").fetchone()
    assert len(blob) < 64 * 1024
    assert journal.result("d").phases[0].metrics == {"m": 1.0}
    if file is not None:
        assert file == FILES["finished"]
        (folder / file).unlink()
        with pytest.raises(UsageError, match="can't be read from"):
            whole_result(journal, "d", folder)


@pytest.mark.parametrize(("number", "steps"), [(20, 20), (80, 80)])
async def test_files_are_removed_a_little_at_a_time_with_pauses(
    journal, tmp_path, monkeypatch, number, steps
):
    """A step that has no time for more than one file: whoever works meanwhile waits for one."""
    files = tmp_path / "runs" / "a" / "deep" / "er"
    files.mkdir(parents=True)
    for each in range(number):
        (files / f"{each}").write_bytes(b"x")
    rests = []

    async def rest(seconds):
        rests.append(seconds)

    monkeypatch.setattr(removal, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(retention.asyncio, "sleep", rest)
    pruner = Pruner(journal, tmp_path / "runs", rest=3.0)
    await pruner.prune(RetentionPolicy(runs=2))
    await pruner.finish()
    assert len(rests) > steps
    assert min(rests) > 0
    assert journal.find("a") == journal.marked() == []


async def test_a_run_is_removed_in_few_transactions(journal, tmp_path):
    """The writer has others to serve. Rows of all tables, the run's own, and the first free pages."""
    pruner = Pruner(journal, tmp_path / "runs", rest=0.0)
    await pruner.prune(RetentionPolicy(runs=0))
    commits = []
    journal._writing.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    await pruner.finish()
    assert len(commits) <= 3 * 4, "three runs of some hundred pages"


async def test_one_that_was_put_aside_is_removed_by_the_next_start(journal, tmp_path):
    await journal.write(lambda tx: tx.mark_pruned(["a"]))
    (tmp_path / "runs" / "a").rename(tmp_path / "runs" / ".a.pruned")
    await Pruner(journal, tmp_path / "runs").finish()
    assert_gone(journal, tmp_path, {"a"})
    assert list((tmp_path / "runs").glob(".*")) == []


async def test_many_runs_are_marked_some_at_a_time(journal, tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "MARKS", 2)
    marked = []
    mark = retention.Pruner._mark_some

    async def some(self, uids):
        marked.append(uids)
        return await mark(self, uids)

    monkeypatch.setattr(retention.Pruner, "_mark_some", some)
    told = await Pruner(journal, tmp_path / "runs").prune(RetentionPolicy(runs=0))
    assert (told.uids, marked) == (("a", "b", "c"), [["a", "b"], ["c"]])


async def test_runs_without_any_files_are_pruned_too(journal, tmp_path):
    """As after a reader has moved the folder of the runs away: there is nothing to sync."""
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    pruner = Pruner(journal, tmp_path / "runs")
    await pruner.prune(RetentionPolicy(runs=0))
    await pruner.finish()
    assert journal.marked() == []
