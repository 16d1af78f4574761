"""The options that make several runs of one run file, and what they make of it before anything is submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.run_file.cells import Cell
    from governor.run_file.options import Options

SHOWN: Final = 10
"""Runs of a matrix that are shown."""

set_option = click.option(
    "--set",
    "sets",
    metavar="PATH=VALUES",
    multiple=True,
    help="A value of a key of the run file, as agents.walker.params.alpha=0.1, or several: 0.1,0.3 or range(5). Several of several options "
    "are a run each.",
)
zip_option = click.option(
    "--zip",
    "zips",
    metavar="PATH=VALUES",
    multiple=True,
    help="As --set; the values of all --zip advance together.",
)
name_option = click.option("--name", metavar="NAME", help="The name of the run, instead of that in the file.")
label_option = click.option(
    "--label",
    "labels",
    metavar="KEY=VALUE",
    multiple=True,
    help="A label of the run, beside those in the file; may be given several times.",
)


def options_of(
    *,
    sets: Sequence[str] = (),
    zips: Sequence[str] = (),
    labels: Sequence[str] = (),
    name: str | None = None,
) -> Options | None:
    """None where none is given. Raises UsageError."""
    if not (sets or zips or labels or name):
        return None
    from governor.run_file.options import Options  # noqa: PLC0415  # pydantic: not for --help

    return Options.of(sets=sets, zips=zips, labels=labels, name=name)


def labels_of(labels: Sequence[str]) -> dict[str, str]:
    """Raises UsageError."""
    found = options_of(labels=labels)
    return {} if found is None else dict(found.labels)


def show_cells(cells: Sequence[Cell]) -> None:
    """A table of the first runs."""
    if not cells:
        return
    from governor.cli.rendering import tables  # noqa: PLC0415  # rich: where there is a table
    from governor.units.paths import shortened  # noqa: PLC0415  # as above

    paths = list(dict.fromkeys(path for cell in cells for path in cell.params))
    short = shortened(paths)
    rows = [
        {"": cell.number, **{short[path]: cell.params.get(path) for path in paths}} for cell in cells[:SHOWN]
    ]
    more = f"{len(cells) - SHOWN} more" if len(cells) > SHOWN else ""
    tables.show(tables.of_rows(rows, more=more))
