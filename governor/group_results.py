"""What came of a group of runs: its cells that differ in their seeds alone are one line, with the mean of each metric and its interval. Pure.

The interval has the true mean with 95 % confidence (`confidence`).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from governor.confidence import interval
from governor.errors import UsageError
from governor.units.paths import shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from governor.messages import CellStatus, GroupReport

SEED: Final = "seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The mean over `n` finished runs, and the ends of its interval; None below two runs."""

    mean: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Cells with the same `params`, but for their seeds. `states`: how many of them are in which state; `metrics` are of those that have finished."""

    params: Mapping[str, Any]
    cells: Sequence[CellStatus]
    states: Mapping[str, int]
    metrics: Mapping[str, Estimate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """A group with its lines.

    Attributes:
        uid: the id of the group.
        name: its name, from the run file.
        paths: the paths of its matrix, without the seed.
        cells: each cell with its last run, in the order of the matrix: `uid`, `state` (the outcome, once it has ended), `params`,
            `metrics`, `reason`, `seconds`.
        lines: for cells that differ in their seeds alone one line: `params`, `cells`, `states`, and `metrics` (name to `mean`, `low`,
            `high`, `n`).
    """

    uid: str
    name: str
    paths: Sequence[str]
    cells: Sequence[CellStatus]
    lines: Sequence[Line]

    @classmethod
    def of(cls, report: GroupReport) -> Self:
        """Of the message that a daemon sends."""
        paths = [path for path in report.paths if path != SEED]
        together: dict[str, list[CellStatus]] = {}
        for cell in report.cells:
            params = {path: cell.params[path] for path in paths if path in cell.params}
            together.setdefault(json.dumps(params, sort_keys=True), []).append(cell)
        lines = [_line(cells, paths) for cells in together.values()]
        return cls(uid=report.uid, name=report.name, paths=paths, cells=report.cells, lines=lines)

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics that its lines have."""
        return list(dict.fromkeys(name for line in self.lines for name in line.metrics))

    def best(self, metric: str, *, lowest: bool = False) -> Line | None:
        """The line with the highest mean of a metric, or the `lowest`, the first of those that are equal; None before a run has finished.
        Raises UsageError for a metric that no line has.
        """
        return next(iter(self.all_best(metric, lowest=lowest)), None)

    def all_best(self, metric: str, *, lowest: bool = False) -> list[Line]:
        """As `best`, with all lines whose means are equal."""
        having = [line for line in self.lines if metric in line.metrics]
        if not having and (known := self.metrics):
            raise UsageError(
                f"no run of group {self.uid} has the metric {metric!r}; there is {', '.join(known)}"
            )
        choose = min if lowest else max
        best = choose((line.metrics[metric].mean for line in having), default=None)
        return [line for line in having if line.metrics[metric].mean == best]

    def table(self, metrics: Sequence[str] | None = None) -> pa.Table:
        """The lines as a `pyarrow.Table`: the params, ``runs``, ``finished``, and of each metric ``NAME``, ``NAME_low``, ``NAME_high``."""
        import pyarrow as pa  # noqa: PLC0415  # 0.1 s, for tables alone

        columns: dict[str, list[Any]] = {
            path: _column([line.params.get(path) for line in self.lines]) for path in self.paths
        }
        columns["runs"] = [len(line.cells) for line in self.lines]
        columns["finished"] = [line.states.get("finished", 0) for line in self.lines]
        for name in self.metrics if metrics is None else metrics:
            found = [line.metrics.get(name) for line in self.lines]
            columns[name] = [None if one is None else one.mean for one in found]
            columns[f"{name}_low"] = [None if one is None else one.low for one in found]
            columns[f"{name}_high"] = [None if one is None else one.high for one in found]
        return pa.table(columns)

    def runs(self, metrics: Sequence[str] | None = None) -> pa.Table:
        """The cells as a `pyarrow.Table`: ``run``, the params with the seed, ``state``, ``seconds``, and each metric."""
        import pyarrow as pa  # noqa: PLC0415  # as above

        paths = dict.fromkeys(path for cell in self.cells for path in cell.params)
        names = dict.fromkeys(name for cell in self.cells for name in cell.metrics)
        columns: dict[str, list[Any]] = {"run": [cell.uid for cell in self.cells]}
        columns |= {path: _column([cell.params.get(path) for cell in self.cells]) for path in paths}
        columns |= {"state": [cell.state for cell in self.cells]}
        columns |= {"seconds": [cell.seconds for cell in self.cells]}
        columns |= {
            name: [cell.metrics.get(name) for cell in self.cells]
            for name in (names if metrics is None else metrics)
        }
        return pa.table(columns)

    def titles(self) -> dict[str, str]:
        """The paths as people see them."""
        return shortened(self.paths)


def _line(cells: Sequence[CellStatus], paths: Sequence[str]) -> Line:
    finished = [cell for cell in cells if cell.state == "finished"]
    names = dict.fromkeys(name for cell in finished for name in cell.metrics)
    return Line(
        params={path: cells[0].params[path] for path in paths if path in cells[0].params},
        cells=cells,
        states=Counter(cell.state for cell in cells),
        metrics={
            name: _estimate([cell.metrics[name] for cell in finished if name in cell.metrics])
            for name in names
        },
    )


def _estimate(values: Sequence[float]) -> Estimate:
    mean, low, high = interval(values)
    return Estimate(mean=values[0] if mean is None else mean, low=low, high=high, n=len(values))


def _column(values: list[Any]) -> list[Any]:
    """Values of one kind, for Arrow: else their texts as JSON."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or (len(kinds) < 2 and kinds <= {int, float, bool, str}):  # one kind
        return [float(value) if kinds == {int, float} and value is not None else value for value in values]
    return [None if value is None else json.dumps(value) for value in values]
