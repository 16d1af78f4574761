"""`governor results RUN --curve METRIC`: how a metric went in each phase, as a plot, JSON or CSV."""

from __future__ import annotations

import csv
import difflib
import io
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import click
import msgspec

from governor.cli import ask
from governor.cli.rendering.lines import clean, counted, number
from governor.cli.rendering.plot import Point, plot
from governor.errors import TryAgain, UsageError
from governor.messages.curves import EVALUATION, HUGE, QUANTILES
from governor.units import durations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.messages import PhaseCurve, RunCurves
    from governor.messages.curves import Curve, Window

Axis: TypeAlias = Literal["episode", "step", "time"]
WIDEST: Final = 100
"""Cells of a plot: a wider one is no clearer."""
_NAMES: Final = [f"p{round(100 * share)}" for share in QUANTILES]
_BAND: Final = (0.1, 0.9)
_UNUSABLE: Final = f"NaN, infinite or beyond ±{HUGE:.0e}".replace("+", "")


def show(broker: str | None, uid: str, metric: str, *, phase: str | None, by: Axis | None, form: str) -> None:
    """Raises UsageError for an unknown metric, and for `by` episode where the values belong to none."""
    found = ask.ask(broker, lambda executor: executor.curves(uid, metric, phase=phase))
    _require(found, metric)
    if form == "json":
        click.echo(msgspec.json.encode(_document(found)))
    elif form == "csv":
        click.echo(_csv(found), nl=False)
    elif form == "table":
        from governor.cli.rendering import tables  # noqa: PLC0415  # rich: for people only

        out = tables.console()
        width = min(out.width, WIDEST)
        for line in _lines(found, by, width):
            out.print(line, markup=False, crop=False, no_wrap=True, overflow="ignore")
    else:
        raise UsageError("a curve is a table, json or csv")


def _require(found: RunCurves, metric: str) -> None:
    if any(each.curve is not None for each in found.phases):
        return
    known = sorted({name for each in found.phases for name in each.metrics})
    if not known:
        none = (
            f"run {found.uid} has no curves: none of its episodes has been terminated or truncated, "
            "and none of its tasks has reported a number"
        )
        raise UsageError(none) if found.ended else TryAgain(f"{none} yet")
    near = difflib.get_close_matches(metric, known, n=1)
    guess = f", did you mean {near[0]!r}? It" if near else "; it"
    raise UsageError(f"run {found.uid} has no curve of {metric!r}{guess} has: {', '.join(known)}")


def _key(found: RunCurves, curve: Curve) -> str:
    """What the windows of the curve are along."""
    if curve.by_step:
        return "step"
    return "evaluation" if found.metric.startswith(EVALUATION) else "episode"


# -- for programs --------------------------------------------------------------------------------------------------


def _document(found: RunCurves) -> dict[str, Any]:
    return {
        "run": found.uid,
        "name": found.name,
        "metric": found.metric,
        "ended": found.ended,
        "phases": [
            {
                "phase": each.phase,
                "mode": each.mode,
                "width": 1 << each.curve.shift,
                "count": each.curve.count,
                "unusable": each.curve.unusable,
                "windows": [_row(window, _key(found, each.curve)) for window in each.curve.in_order],
            }
            for each in found.phases
            if each.curve is not None
        ],
    }


def _row(window: Window, key: str) -> dict[str, Any]:
    of_key = {} if key == "step" else {key: (window.first_key, window.last_key)}
    return of_key | {
        "step": (window.first_step, window.last_step),
        "seconds": (window.first_at, window.last_at),
        "count": window.count,
        "mean": window.mean,
        "min": window.low,
        **dict(zip(_NAMES, window.quantiles(), strict=True)),
        "max": window.high,
    }


def _csv(found: RunCurves) -> str:
    rows = [
        {"phase": each["phase"]}
        | {
            name: value
            for key, values in window.items()
            for name, value in (
                zip((f"{key}_first", f"{key}_last"), values, strict=True)
                if isinstance(values, tuple)
                else [(key, values)]
            )
        }
        for each in _document(found)["phases"]
        for window in each["windows"]
    ]
    file = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(file, [*columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


# -- for people ----------------------------------------------------------------------------------------------------


def _lines(found: RunCurves, by: Axis | None, width: int) -> Iterator[str]:
    yield clean(f"{found.name} {found.uid}")
    for each in found.phases:
        if each.curve is not None and each.curve.count:
            yield ""
            yield from _plotted(found, each, each.curve, by, width)
        elif each.curve is not None:
            yield f"{clean(each.phase)}: all of its {each.curve.unusable} values are {_UNUSABLE}"


def _plotted(found: RunCurves, phase: PhaseCurve, curve: Curve, by: Axis | None, width: int) -> Iterator[str]:
    key = _key(found, curve)
    if by == "episode" and key == "step":
        raise UsageError(f"the values of {found.metric!r} belong to no episode: say --by step or --by time")
    axis = key if by in (None, "episode") else by
    windows = curve.in_order
    points = _joined(sorted(_point(window, axis) for window in windows))
    wide = f", each of {1 << curve.shift} {key}s" if curve.shift else ""
    yield clean(
        f"{phase.phase}: {found.metric} by {axis}, "
        f"{counted(curve.count, 'value')} in {counted(len(windows), 'window')}{wide}"
    )
    first, last = points[0].begin, max(point.end for point in points)
    label = durations.text if axis == "time" else _whole
    ends = label(first), label(last if axis in ("step", "time") else last - 1)
    yield from plot(points, width=width, axis=axis, ends=ends)
    extremes = f"{number(min(w.low for w in windows))} to {number(max(w.high for w in windows))}"
    odd = f"; {curve.unusable} more were {_UNUSABLE}" if curve.unusable else ""
    means = f"{number(windows[0].mean)} at first, {number(windows[-1].mean)} at last"
    yield f"• mean: {means}   ░ 10 % to 90 %   all values: {extremes}{odd}"


def _point(window: Window, axis: str) -> Point:
    begin, end = {
        "step": (window.first_step, window.last_step),
        "time": (window.first_at, window.last_at),
    }.get(axis, (window.first_key, window.last_key + 1))
    low, high = window.quantiles(_BAND)
    return Point(begin, end, window.count, window.mean, low, high)


def _joined(points: list[Point]) -> list[Point]:
    """Each reaches to the next one: where there are few, a plot has no gaps."""
    following = [*(point.begin for point in points[1:]), points[-1].end]
    return [point._replace(end=max(point.end, begin)) for point, begin in zip(points, following, strict=True)]


def _whole(value: float) -> str:
    return str(int(value))
