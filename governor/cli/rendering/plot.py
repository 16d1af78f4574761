"""Curves as text: a sparkline of one row, a plot with axes. Pure: lines of so many cells, without colour."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from governor.cli.rendering.lines import number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HEIGHT: Final = 10
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_ROUNDING: Final = 1e-9
_MEAN, _BAND, _LEFT, _BOTTOM, _CORNER = "•", "░", "┤", "─", "└"


class Point(NamedTuple):
    """What a stretch of the x axis, from `begin` to `end`, has: `weight` values, their mean, and the band they are in."""

    begin: float
    end: float
    weight: int
    mean: float
    low: float
    high: float


def sparkline(values: Sequence[float], width: int) -> str:
    """The values, as far as there are so many cells one cell each; else the means of neighbours."""
    per_cell = max(1, ceil(len(values) / max(width, 1)))
    cells = [
        sum(part) / len(part)
        for part in (values[at : at + per_cell] for at in range(0, len(values), per_cell))
    ]
    if not cells:
        return ""
    low, high = min(cells), max(cells)
    scale = 0.0 if _is_flat(low, high) else (len(_LEVELS) - 1) / (high - low)
    return "".join(_LEVELS[round((cell - low) * scale) if scale else len(_LEVELS) // 2] for cell in cells)


def plot(points: Sequence[Point], *, width: int, axis: str, ends: tuple[str, str]) -> Iterator[str]:
    """Lines of at most `width` cells: `HEIGHT` rows of the plot, and two of the x axis, with its name and its two `ends`. At
    least one point.
    """
    low = min(min(point.low, point.mean) for point in points)
    high = max(max(point.high, point.mean) for point in points)
    rows = 1 if _is_flat(low, high) else HEIGHT
    labels = {0: number(high), rows - 1: number(low)}
    if rows > 1:
        labels[rows // 2] = number(high - (high - low) * (rows // 2) / (rows - 1))
    indent = max(map(len, labels.values()))
    begin, end = min(point.begin for point in points), max(point.end for point in points)
    columns = _resampled(points, begin, end, max(width - indent - 2, 8))

    def row_of(value: float) -> int:
        return round((high - value) / (high - low) * (rows - 1)) if rows > 1 else 0

    cells = [[" "] * len(columns) for _ in range(rows)]
    for at, column in enumerate(columns):
        if column is not None:
            for row in range(row_of(column.high), row_of(column.low) + 1):
                cells[row][at] = _BAND
            cells[row_of(column.mean)][at] = _MEAN
    for row, line in enumerate(cells):
        yield f"{labels.get(row, ''):>{indent}} {_LEFT}{''.join(line).rstrip()}".rstrip()
    yield f"{'':>{indent}} {_CORNER}{_BOTTOM * len(columns)}"
    left, right = ends
    between = max(len(columns) - len(left) - len(right), 1)
    yield f"{'':>{indent}}  {left}{axis if len(axis) + 2 <= between else '':^{between}}{right}"


def _is_flat(low: float, high: float) -> bool:
    """Whether the values are as good as equal: means of equal values differ by rounding."""
    return high - low <= _ROUNDING * max(abs(low), abs(high))


def _resampled(points: Sequence[Point], begin: float, end: float, columns: int) -> list[Point | None]:
    """For each column the weighted mean of the points in it; None where there is none."""
    found: list[list[Point]] = [[] for _ in range(columns)]
    scale = columns / (end - begin) if end > begin else 0.0
    for point in points:
        first = min(int((point.begin - begin) * scale), columns - 1)
        last = min(max(ceil((point.end - begin) * scale) - 1, first), columns - 1)
        for column in range(first, last + 1 if scale else columns):
            found[column].append(point)
    return [_joined(each) if each else None for each in found]


def _joined(points: Sequence[Point]) -> Point:
    weight = sum(point.weight for point in points)

    def mean(of: Callable[[Point], float]) -> float:
        return sum(of(point) * point.weight for point in points) / weight

    return Point(
        begin=points[0].begin,
        end=points[-1].end,
        weight=weight,
        mean=mean(lambda point: point.mean),
        low=mean(lambda point: point.low),
        high=mean(lambda point: point.high),
    )
