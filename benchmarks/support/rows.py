"""One way to hold and to print what was measured, for each benchmark alone and for the table of all.

A figure is met or missed against its aim; what a peer did is quoted as text, because it was measured elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HEAD = ("what", "figure", "peer", "aim", "", "note")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure, NaN where it could not be measured: `note` says why. `at_most` or `at_least` is its aim; `if_missed` is the reason, shown
    where the aim is missed.
    """

    what: str
    figure: float
    unit: str
    peer: str = ""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""
    if_missed: str = ""

    @property
    def met(self) -> bool | None:
        """None where there is no aim."""
        if self.at_most is not None:
            return self.figure <= self.at_most
        return None if self.at_least is None else self.figure >= self.at_least

    @property
    def aim(self) -> str:
        if self.at_most is not None:
            return f"≤ {_number(self.at_most)} {self.unit}"
        return "" if self.at_least is None else f"≥ {_number(self.at_least)} {self.unit}"

    @property
    def cells(self) -> tuple[str, ...]:
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        reason = self.if_missed if self.met is False else ""
        note = "; ".join(filter(None, (self.note, reason)))
        return self.what, f"{_number(self.figure)} {self.unit}".strip(), self.peer, self.aim, verdict, note


def table(rows: Iterable[Row]) -> str:
    """A Markdown table whose columns also stand in line on a terminal."""
    lines = [HEAD, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]

    def text(cells: Sequence[str], fill: str = " ") -> str:
        padded = (
            cell.rjust(width, fill) if column == 1 else cell.ljust(width, fill)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = "|" + "|".join("-" * (w + 1) + (":" if c == 1 else "-") for c, w in enumerate(widths)) + "|"
    return "\n".join([text(lines[0]), rule, *map(text, lines[1:])])


def spread(values: Sequence[float], unit: str) -> str:
    """How far the repetitions of one figure lie apart."""
    return f"p50 of {len(values)}, {_number(min(values))} to {_number(max(values))} {unit}"


def p50(values: Sequence[float]) -> float:
    return median(values)


def _number(value: float) -> str:
    if isnan(value):
        return "-"
    if (value == int(value) and abs(value) < 1000) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"
