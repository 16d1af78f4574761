"""The table of the runs: a line needs no document, a question costs what its answer has, an older table is taken over whole."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from governor.journal import schema
from governor.journal.journal import Journal
from governor.journal.runs_table import RunLine, read_row
from governor.messages import PhaseResult
from tests.support.journal_steps import steps
from tests.support.run_results import run_result

STORED = Path(__file__).with_name("journal_schema_4.sql")
SPEC = {"name": "n", "phases": [{"name": "p"}, {"name": "q"}]}


async def fill(journal, *, ended, queued=20, pruned=0):
    """Runs that were pruned, that have ended, and that wait, in this order of submission."""
    names = [
        f"{kind}{n}" for kind, number in (("p", pruned), ("e", ended), ("q", queued)) for n in range(number)
    ]

    def change(tx):
        for uid in names:
            parent = f"e{ended - 1}" if uid == "q0" else None
            tx.submit(uid=uid, key=f"key of {uid}", name="n", spec=SPEC, folder="/", parent=parent)
            if uid[0] != "q":
                tx.outcome(run_result(uid, reason="x" * 9000, seconds=2.5))
                tx.ended(uid)
        tx.mark_pruned([uid for uid in names if uid[0] == "p"])
        while any(tx.remove_rows(uid, 99) for uid in names if uid[0] == "p"):
            pass

    await journal.write(change)


QUESTIONS = {
    "a page": lambda journal: journal.runs(limit=10),
    "the last page": lambda journal: journal.runs(limit=10, after=journal.line("e9").position),
    "a line": lambda journal: journal.line("e7"),
    "lines": lambda journal: journal.lines(["e3", "q5"]),
    "the first that wait": lambda journal: journal.first_unended(10),
    "all that wait": lambda journal: [*journal.unended()],
    "by the beginning": lambda journal: journal.find("q1"),
    "by a key": lambda journal: journal.of_key("key of e5"),
    "those to prune": lambda journal: journal.ended(before=0.0),
    "those to remove": lambda journal: journal.marked(),
}


async def test_a_question_costs_the_same_whatever_number_of_runs_has_ended_or_was_pruned(tmp_path):
    counted = []
    for number in (30, 3000):
        journal = Journal(tmp_path / f"{number}.db")
        await fill(journal, ended=number, pruned=number)
        counted.append({name: steps(journal, question) for name, question in QUESTIONS.items()})
        await journal.close()
    few, many = counted
    assert all(few.values())
    assert {name: many[name] for name in few if many[name] > 1.2 * few[name]} == {}


async def test_who_resumes_a_run_is_found_among_those_that_wait(tmp_path):
    counted = []
    for number in (30, 3000):
        journal = Journal(tmp_path / f"{number}.db")
        await fill(journal, ended=number)
        taken = []
        journal._writing.set_progress_handler(lambda taken=taken: taken.append(1) and None, 1)
        assert await journal.write(lambda tx, n=number: tx.resumed_by(f"e{n - 1}")) == "q0"
        counted.append(len(taken))
        await journal.close()
    assert counted[1] <= 1.2 * counted[0]


async def test_the_pages_have_each_run_once_from_the_newest_on_and_none_that_was_pruned(tmp_path):
    journal = Journal(tmp_path / "governor.db")
    await fill(journal, ended=25, queued=3, pruned=7)
    seen, after = [], None
    while page := journal.runs(limit=10, after=after):
        seen += [line.uid for line in page]
        after = page[-1].position
    assert seen == [*(f"q{n}" for n in (2, 1, 0)), *(f"e{n}" for n in range(24, -1, -1))]
    assert [line.uid for line in journal.first_unended(2)] == ["q0", "q1"]
    assert {line.uid for line in journal.lines(["q1", "e3", "p1", "nobody"])} == {"q1", "e3", "p1"}
    await journal.close()


async def test_a_line_has_what_it_shows_of_the_run_file_and_the_result(tmp_path):
    journal = Journal(tmp_path / "governor.db")
    await journal.write(lambda tx: tx.submit(uid="r", key=None, name="n", spec=SPEC, folder="/"))
    line = journal.line("r")
    assert (line.phases, line.metrics, line.seconds) == (2, {}, None)
    phases = [
        PhaseResult(name=name, mode="train", end="until", metrics=metrics)
        for name, metrics in (("p", {"m": 1.0}), ("q", {"m": 2.0, "n": float("inf")}), ("r", {}))
    ]
    result = run_result("r", phases=tuple(phases), seconds=2.5)
    await journal.write(lambda tx: (tx.outcome(result), tx.ended("r")))
    line = journal.line("r")
    assert (line.metrics, line.seconds, line.damage) == ({"m": 2.0, "n": float("inf")}, 2.5, "")
    journal._writing.execute("UPDATE runs SET spec = x'c1', result = x'c1'")
    assert journal.line("r") == line, "a line needs none of them"
    assert journal.run("r").damage.startswith("runs.spec: ")
    await journal.close()


@pytest.fixture
def old(tmp_path):
    """A journal of schema 4, as the governor of that time wrote it."""
    with sqlite3.connect(tmp_path / "governor.db") as connection:
        connection.executescript(STORED.read_text())
    connection.close()
    return tmp_path / "governor.db"


async def test_a_journal_of_schema_4_gets_the_columns_from_its_documents(old):
    for _ in range(2):
        schema.examine(old)
    journal = Journal(old)
    metrics = {"return_mean": 0.5, "steps_total": 6.0}
    lines = {line.uid: (line.phases, line.metrics, line.seconds) for line in journal.runs(limit=9)}
    assert lines == {
        "new": (2, {}, None),
        "held": (2, {}, None),
        "spoilt": (None, {}, None),
        "old": (2, metrics, 7.25),
    }
    assert [line.uid for line in journal.unended()] == ["held", "new"]
    assert journal.ended(behind=1) == ["old"]
    assert (journal.of_key("key of gone"), journal.pruned("g").uid, journal.find("g")) == ("gone", "gone", [])
    assert await journal.write(lambda tx: tx.resumed_by("old")) == "new"
    assert journal.result("old").phases[0].metrics == metrics
    await journal.close()


MIGRATE = """
import os, signal, sys
from pathlib import Path
from governor.journal import excerpts, schema

left = int(sys.argv[2])
def counted(function):
    def call(document):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(document)
    return call

for name, function in excerpts.FUNCTIONS.items():
    excerpts.FUNCTIONS[name] = counted(function)
schema.examine(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("steps_before", [0, 5, 11])
async def test_a_migration_that_is_killed_leaves_the_old_journal_and_is_made_by_the_next_start(
    old, tmp_path, steps_before
):
    """Twelve values are to be made: of four runs three each."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", MIGRATE, str(old), str(steps_before)],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in tmp_path.glob("governor.db*"):
        shutil.copy(file, copy)
    with sqlite3.connect(copy / "governor.db") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (4,)
        columns = {row[1] for row in connection.execute("PRAGMA table_info(runs)")}
        assert columns.isdisjoint({"phases", "metrics", "seconds"})
    connection.close()
    await test_a_journal_of_schema_4_gets_the_columns_from_its_documents(old)


def test_a_new_journal_and_a_migrated_one_are_alike(old, tmp_path):
    schema.examine(old)
    schema.examine(tmp_path / "new.db")
    found = []
    for path in (old, tmp_path / "new.db"):
        with sqlite3.connect(path) as connection:
            columns = sorted(row[1:3] for row in connection.execute("PRAGMA table_info(runs)"))
            indices = connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'index' ORDER BY name"
            )
            found.append((columns, indices.fetchall()))
        connection.close()
    assert found[0] == found[1]


def test_metrics_that_are_no_numbers_are_damage():
    values = ["r", None, "n", "/", 1.0, None, None, None, "", None, None, None, 1]
    line = read_row(RunLine, (*values, msgspec.msgpack.encode({"m": "x"}), 2.5, *[None] * 4, 7))
    assert (line.metrics, line.seconds, line.position) == ({}, 2.5, 7)
    assert line.damage.startswith("runs.metrics: ")
