"""A table that fits its terminal and breaks no word.

Rules:
1. Where all columns fit, each row is one line. The last column may wrap at words, as long as it keeps `PROSE` cells.
2. Where they do not, columns without a value are dropped, and those that find no room stand below their row, as
   ``name value``. So the columns are given in the order of their worth.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions

PROSE: Final = 48
"""The last column wraps down to so many cells; below that it stands below its row."""
NOTHING: Final = ("-", "")
"""What cells without a value show."""
_INDENT: Final = "  "
_WIDE_GAP: Final = 3
_NARROW_GAP: Final = 2


class TableColumns:
    """A renderable of rich. Cells are text, never markup."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._rows: list[tuple[Text, ...]] = []

    def add(self, *cells: Text) -> None:
        """A row: one cell for each name."""
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        shown, gap = list(range(len(self._names))), _WIDE_GAP
        fitting = self._fitting(shown, width, gap)
        if len(fitting) < len(shown):
            gap = _NARROW_GAP
            shown = [at for at in shown if any(row[at].plain not in NOTHING for row in self._rows)]
            fitting = self._fitting(shown, width, gap)
        widths, below = list(fitting.values()), [at for at in shown if at not in fitting]
        yield from _lines(console, [Text(self._names[at], style="bold") for at in fitting], widths, gap)
        yield Text("─" * (sum(widths) + gap * (len(widths) - 1)))
        for row in self._rows:
            yield from _lines(console, [row[at] for at in fitting], widths, gap)
            values = [(self._names[at], row[at]) for at in below if row[at].plain not in NOTHING]
            if values:
                for line in _joined(values).wrap(console, max(width - len(_INDENT), 1), overflow="fold"):
                    line.rstrip()
                    yield Text.assemble(_INDENT, line)

    def _fitting(self, columns: Sequence[int], width: int, gap: int) -> dict[int, int]:
        """The widths of those `columns` that fit beside each other; of the first one at least."""
        fitting: dict[int, int] = {}
        left = width
        for at in columns:
            natural = max([len(self._names[at]), *(row[at].cell_len for row in self._rows)])
            wraps = at == len(self._names) - 1 and len(fitting) == len(columns) - 1 and left >= PROSE
            if natural <= left or not fitting or wraps:
                fitting[at] = min(natural, left)
                left -= fitting[at] + gap
        return fitting


def _lines(console: Console, cells: Sequence[Text], widths: Sequence[int], gap: int) -> Iterator[Text]:
    wrapped = [
        cell.wrap(console, width, overflow="fold") if cell.cell_len > width else [cell]
        for cell, width in zip(cells, widths, strict=True)
    ]
    for parts in zip_longest(*wrapped, fillvalue=Text()):
        yield _beside(parts, widths, gap)


def _beside(parts: Iterable[Text], widths: Sequence[int], gap: int) -> Text:
    line, wanted = Text(), 0
    for part, width in zip(parts, widths, strict=True):
        if part.plain:
            line.append(" " * (wanted - line.cell_len))
            line.append_text(part)
        wanted += width + gap
    line.rstrip()
    return line


def _joined(values: Iterable[tuple[str, Text]]) -> Text:
    return Text(" · ").join(Text.assemble((f"{name} ", "dim"), value) for name, value in values)
