"""Tables and texts in narrow terminals: whole words, and nothing is lost."""

import io

import msgspec
import pytest
from rich.console import Console
from rich.text import Text

from governor.cli.rendering import tables
from governor.cli.rendering.columns import TableColumns
from governor.cli.rendering.lines import wrapped
from governor.messages import RunList
from tests.governor.cli.recorded import REPORT, RESULT, STATUS

LONG = msgspec.structs.replace(
    STATUS,
    uid="dqgtzad5",
    name="frozen-lake",
    outcome="failed",
    ended_at=9.0,
    seconds=8.0,
    reason="limit memory of 8 GiB exceeded in phase train: 8.31 GiB",
)


def printed(renderable, width):
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(renderable, crop=False)
    return out.getvalue().splitlines()


def words(rows):
    return " ".join(rows).split()


def table(*names, rows):
    made = TableColumns(*names)
    for row in rows:
        made.add(*map(Text, row))
    return made


def test_where_all_fits_a_row_is_a_line():
    assert printed(table("run", "name", rows=[("u1", "lake"), ("u22", "x")]), 60) == [
        "run   name",
        "──────────",
        "u1    lake",
        "u22   x",
    ]


def test_the_last_column_wraps_at_words():
    reason = "the first words of a long reason, and then also the second ones"
    assert printed(table("run", "reason", rows=[("u1", reason)]), 57)[2:] == [
        "u1    the first words of a long reason, and then also the",
        "      second ones",
    ]


def test_columns_that_do_not_fit_stand_below_their_row():
    rows = [("u1", "x" * 20, "finished", "-", "-"), ("u2", "y", "failed", "-", "because of all that")]
    assert printed(table("run", "name", "outcome", "tasks", "reason", rows=rows), 40) == [
        "run  name                  outcome",
        "───────────────────────────────────",
        "u1   xxxxxxxxxxxxxxxxxxxx  finished",
        "u2   y                     failed",
        "  reason because of all that",
    ]


def test_a_wide_column_among_narrow_ones_stands_below_alone():
    rows = [("1", "[0.25, 0.75, 0.5, 0.125, 0.625]", "2", "True")]
    assert printed(table("step", "observation", "action", "done", rows=rows), 30) == [
        "step  action  done",
        "──────────────────",
        "1     2       True",
        "  observation [0.25, 0.75,",
        "  0.5, 0.125, 0.625]",
    ]


def test_wide_characters_are_two_cells():
    rows = printed(table("a", "b", rows=[("日本", "x"), ("yy", "z")]), 20)
    assert rows[2:] == ["日本   x", "yy     z"]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_all_tables_show_whole_words_and_lose_none(width):
    for renderable in (
        tables.result(RESULT),
        tables.status(msgspec.structs.replace(REPORT, runs=(LONG, STATUS)), conductors=True),
        tables.runs(RunList(runs=(LONG, STATUS))),
        tables.of_rows([{"episode": 1, "reason": "some text", "values": None}], more="3 more"),
    ):
        wide, narrow = printed(renderable, 400), printed(renderable, width)
        whole = {word for word in words(wide) if len(word) < 16 and word != "-" and "─" not in word}
        assert whole - set(words(narrow)) <= {"tasks"}, "a column without a value"
        assert max(map(len, narrow)) <= max(width, 30)


def test_list_and_status_at_60_columns():
    assert printed(tables.runs(RunList(runs=(LONG,))), 60)[2:] == [
        "dqgtzad5  frozen-lake  failed   1970-01-01 00:00:00  8.0s",
        "  reason limit memory of 8 GiB exceeded in phase train: 8.31",
        "  GiB",
    ]
    run = msgspec.structs.replace(LONG, outcome=None, tasks_total=10)
    assert printed(tables.status(msgspec.structs.replace(REPORT, runs=(run,)), conductors=False), 60)[4:] == [
        "run       name         state    phase      episodes  tasks",
        "─" * 60,
        "dqgtzad5  frozen-lake  running  1/2 train  2 of 3    0 of 10",
        "  return 0.5 · waits for episodes",
    ]


def test_a_path_is_never_broken():
    folder = "/var/lib/run-governor/runs/dqgtzad5-and-more"
    rows = printed(tables.result(msgspec.structs.replace(RESULT, folder=folder)), 30)
    assert rows[-1] == f"Files of the run: {folder}"


def test_texts_wrap_at_words_and_what_follows_is_indented():
    said = "run.yaml: 2 faults\n  /a/long/path/run.yaml:2: sede: unknown key 'sede'; did you mean 'seed'?"
    assert wrapped(said, 30).splitlines() == [
        "run.yaml: 2 faults",
        "  /a/long/path/run.yaml:2:",
        "    sede: unknown key 'sede';",
        "    did you mean 'seed'?",
    ]
    assert wrapped("/one/path/that/is/longer/than/that", 20) == "/one/path/that/is/longer/than/that"
