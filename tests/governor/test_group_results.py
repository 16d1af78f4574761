"""What came of a group: one line for runs that differ in their seeds alone, with means and intervals of those that have finished."""

from __future__ import annotations

import pytest

from governor.errors import UsageError
from governor.group_results import GroupResult
from governor.messages import CellStatus, GroupReport


def group(*cells):
    return GroupResult.of(
        GroupReport(
            uid="g-a",
            name="n",
            submitted_at=1.0,
            paths=("a.lr", "seed"),
            max_parallel=None,
            fail_fast=False,
            cells=tuple(
                CellStatus(
                    cell=number,
                    uid=f"r{number}",
                    state=state,
                    params=params,
                    metrics={} if value is None else {"return_mean": value},
                )
                for number, (params, state, value) in enumerate(cells)
            ),
        )
    )


FOUND = group(
    ({"a.lr": 0.1, "seed": 0}, "finished", 1.0),
    ({"a.lr": 0.5, "seed": 0}, "finished", 4.0),
    ({"a.lr": 0.1, "seed": 1}, "finished", 2.0),
    ({"a.lr": 0.5, "seed": 1}, "failed", 100.0),
    ({"a.lr": 0.1, "seed": 2}, "finished", 3.0),
    ({"a.lr": [1, 2], "seed": 2}, "queued", None),
    ({"seed": 9}, "finished", -1.0),
)


def test_runs_that_differ_in_their_seeds_are_one_line():
    assert [line.params for line in FOUND.lines] == [{"a.lr": 0.1}, {"a.lr": 0.5}, {"a.lr": [1, 2]}, {}]
    assert [dict(line.states) for line in FOUND.lines] == [
        {"finished": 3},
        {"finished": 1, "failed": 1},
        {"queued": 1},
        {"finished": 1},
    ]
    three, one = (line.metrics["return_mean"] for line in FOUND.lines[:2])
    assert (three.n, three.mean) == (3, 2.0)
    assert (three.low, three.high) == pytest.approx((-0.48414, 4.48414), abs=1e-4)
    assert (one.mean, one.low, one.high, one.n) == (4.0, None, None, 1), "a failed run does not count"


def test_the_best_line_is_the_highest_or_the_lowest_mean():
    assert FOUND.best("return_mean").params == {"a.lr": 0.5}
    assert FOUND.best("return_mean", lowest=True).params == {}
    equal = [({"a.lr": rate, "seed": 0}, "finished", value) for rate, value in ((1, 2.0), (2, 0.5), (3, 2.0))]
    assert [line.params for line in group(*equal).all_best("return_mean")] == [{"a.lr": 1}, {"a.lr": 3}]
    assert group(*equal).best("return_mean").params == {"a.lr": 1}
    with pytest.raises(UsageError, match="no run of group g-a has the metric 'loss'; there is return_mean"):
        FOUND.best("loss")
    assert group(({"seed": 0}, "queued", None)).best("loss") is None


def test_lines_and_runs_are_tables():
    table = FOUND.table()
    assert table.column_names == [
        "a.lr",
        "runs",
        "finished",
        "return_mean",
        "return_mean_low",
        "return_mean_high",
    ]
    assert table["a.lr"].to_pylist() == ["0.1", "0.5", "[1, 2]", None], "values of several kinds are JSON"
    assert table["finished"].to_pylist() == [3, 1, 0, 1]
    runs = FOUND.runs(["return_mean"])
    assert runs.column_names == ["run", "a.lr", "seed", "state", "seconds", "return_mean"]
    assert runs["seed"].to_pylist() == [0, 0, 1, 1, 2, 2, 9]
    assert group(({"a.lr": 1, "seed": 0}, "x", None), ({"a.lr": 0.5, "seed": 1}, "x", None)).table()[
        "a.lr"
    ].to_pylist() == [1.0, 0.5]
