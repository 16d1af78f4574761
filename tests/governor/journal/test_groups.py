"""Groups and labels on record: a page of a filter costs what it shows, and a pruned run leaves none of its labels."""

from __future__ import annotations

import msgspec
import pytest

from governor.journal.groups import GroupRow, NewRun
from governor.journal.journal import Journal
from governor.journal.run_filter import RunFilter
from tests.support.journal_steps import steps
from tests.support.run_results import run_result

SPEC = msgspec.msgpack.encode({"name": "n", "phases": [{"name": "p"}]})


def runs(prefix, number, **labels):
    return [
        NewRun(
            uid=f"{prefix}{n}",
            name="n",
            spec=SPEC,
            phases=1,
            cell=n,
            folder="/",
            params={"seed": n},
            labels=labels,
        )
        for n in range(number)
    ]


def row(uid, number, **more):
    return GroupRow(uid=uid, name="n", submitted_at=1.0, runs=number, paths=("seed",), key=uid, **more)


async def fill(journal, *, others):
    """A group of 20 runs, the oldest; behind them another group of many runs, which have failed and have one of its two labels."""

    def change(tx):
        tx.submit_group(row("g-a", 20), runs("a", 20, team="rl", paper="x"))
        tx.submit_group(row("g-b", others), runs("b", others, team="rl"))
        for n in range(others):
            tx.outcome(run_result(f"b{n}", outcome="failed"))
            tx.ended(f"b{n}")
        for uid, outcome in (("a3", "failed"), ("a4", "aborted")):
            tx.outcome(run_result(uid, outcome=outcome))
            tx.ended(uid)

    await journal.write(change)


FILTERS = {
    "group": RunFilter(group="g-a"),
    "label": RunFilter(labels={"paper": "x"}),
    "two labels": RunFilter(labels={"paper": "x", "team": "rl"}),
    "outcome": RunFilter(outcome="aborted"),
    "outcome of a group": RunFilter(group="g-a", outcome="failed"),
    "unended": RunFilter(unended=True),
    "unended of a label": RunFilter(labels={"paper": "x"}, unended=True),
}


async def test_a_page_costs_the_same_whatever_number_of_other_runs_there_is(tmp_path):
    counted = []
    for others in (30, 3000):
        journal = Journal(tmp_path / f"{others}.db")
        await fill(journal, others=others)
        counted.append({})
        for name, only in FILTERS.items():
            assert {line.uid[0] for line in journal.runs(limit=5, only=only)} == {"a"}
            counted[-1][name] = steps(journal, lambda journal, only=only: journal.runs(limit=5, only=only))
        await journal.close()
    assert counted[0] == counted[1]


async def test_a_failure_of_a_group_is_found_along_its_index(tmp_path):
    journal = Journal(tmp_path / "governor.db")
    await fill(journal, others=300)
    assert (journal.failed_run("g-a"), journal.failed_run("g-b")) == ("a3", "b0")
    unended = journal.unended_of_group("g-a")
    assert [(uid, is_begun) for uid, _, is_begun in unended] == [
        (f"a{n}", False) for n in range(20) if n not in (3, 4)
    ]
    await journal.write(lambda tx: tx.resume_group("g-a"))
    assert journal.failed_run("g-a") is None
    await journal.close()


async def test_a_group_is_recorded_once_and_whole(tmp_path):
    journal = Journal(tmp_path / "governor.db")
    made = await journal.write(lambda tx: tx.submit_group(row("g-a", 2), runs("a", 2)))
    same = GroupRow(**{**{name: getattr(made, name) for name in made.__dataclass_fields__}, "uid": "g-z"})
    again = await journal.write(lambda tx: tx.submit_group(same, runs("z", 2)))
    assert (again.uid, [line.uid for line in journal.runs(limit=9)]) == ("g-a", ["a1", "a0"])
    with pytest.raises(Exception, match="on record already"):  # the second of its runs
        await journal.write(lambda tx: tx.submit_group(row("g-c", 2), [*runs("c", 1), *runs("a", 1)]))
    assert journal.group("g-c") is None
    assert journal.line("c0") is None
    await journal.close()


async def test_the_first_reason_of_an_abort_counts_until_there_are_new_runs(tmp_path):
    journal = Journal(tmp_path / "governor.db")
    await journal.write(lambda tx: tx.submit_group(row("g-a", 2), runs("a", 2)))
    for reason in ("first", "second"):
        found = await journal.write(lambda tx, reason=reason: tx.abort_group("g-a", reason, {"user": reason}))
        assert (found.abort_reason, found.aborted_to) == ("first", journal.line("a1").position)
        assert found.abort_by == {"user": "first"}

    def resumed(tx):
        tx.submit(uid="r0", key=None, name="n", spec={"name": "n"}, folder="/", group="g-a", cell=0)
        return tx.abort_group("g-a", "third")

    assert (await journal.write(resumed)).abort_reason == "third"
    await journal.close()


async def test_nothing_of_a_pruned_run_is_listed(tmp_path):
    journal = Journal(tmp_path / "governor.db")
    await fill(journal, others=3)

    def prune(tx):
        tx.mark_pruned(["b1"])
        while tx.remove_rows("b1", 99):
            pass

    await journal.write(prune)
    assert [line.uid for line in journal.lines_of_group("g-b")] == ["b0", "b2"]
    labelled = journal._value("SELECT count(*) FROM run_labels JOIN runs ON position = run WHERE uid = 'b1'")
    assert labelled == 0
    await journal.close()
