"""Tables for people about groups of runs. Nothing is fetched here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from governor.cli.rendering.columns import TableColumns
from governor.cli.rendering.lines import clean, counted, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from governor.group_results import Estimate, GroupResult, Line

USUAL: Final = ("return_mean", "steps_mean")
"""Metrics that are shown where none are asked for; else the first ones."""
MOST_METRICS: Final = 4
MOST_BEST: Final = 4


def lines_of(found: GroupResult, metrics: Sequence[str], *, best: Sequence[Line]) -> Group:
    """A row for each line: its params, how many of its runs have finished, and the mean of each metric ± half of its interval."""
    known = found.metrics
    shown = [*metrics] or [name for name in USUAL if name in known] or known[:MOST_METRICS]
    titles = found.titles()
    table = TableColumns(*map(clean, titles.values()), "runs", *map(clean, shown))
    green = {id(line) for line in best}
    for line in found.lines:
        style = "bold green" if id(line) in green else ""
        cells = [
            *("-" if path not in line.params else _short(line.params[path]) for path in titles),
            _states(line),
            *(estimate(line.metrics.get(name)) for name in shown),
        ]
        table.add(*(Text(clean(cell), style=style) for cell in cells))
    head = Text(clean(f"{found.name} {found.uid}: {counted(len(found.cells), 'run')}"), style="bold")
    parts: list[RenderableType] = [head, "", table]
    if best:
        parts += ["", *(Text(clean(_best(line, metrics[0], titles))) for line in best[:MOST_BEST])]
    if len(best) > MOST_BEST:
        parts += [f"and {len(best) - MOST_BEST} more with the same mean"]
    if any((one := line.metrics.get(name)) and one.low is not None for line in found.lines for name in shown):
        parts += ["", Text("mean ± half of the 95 % confidence interval over the finished runs", style="dim")]
    return Group(*parts)


def _best(line: Line, metric: str, titles: Mapping[str, str]) -> str:
    what = (
        ", ".join(f"{titles[path]} {_short(value)}" for path, value in line.params.items()) or "the only one"
    )
    uids = " ".join(cell.uid for cell in line.cells[:8])
    return f"best {metric}: {what} ({estimate(line.metrics[metric])}), runs {uids}"


def estimate(found: Estimate | None) -> str:
    """``0.845 ± 0.02``; of one run the value alone."""
    if found is None:
        return "-"
    spread = "" if found.high is None else f" ± {number(found.high - found.mean)}"
    return f"{number(found.mean)}{spread}"


def _states(line: Line) -> str:
    states = dict(line.states)
    if states.keys() == {"finished"}:
        return f"{states['finished']}"
    return ", ".join(f"{count} {state}" for state, count in states.items())


def _short(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)
