"""Several runs side by side: their metrics with intervals over seeds, and the keys in which their run files differ. Pure.

The interval is mean ± t · s / √n, with t the quantile of Student's distribution of n - 1 degrees of freedom for which the interval has
the true mean with 95 % probability; s is the sample's standard deviation.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import yaml

from governor.report.document import ComparedRun, Comparison, Difference, MetricComparison

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from governor.report.document import RunDocument

CONFIDENCE: Final = 0.95
_IGNORED: Final = frozenset({"name", "seed"})
"""Keys in which the runs of a group may differ."""


def compare(runs: Sequence[RunDocument]) -> Comparison | None:
    """None for a single run."""
    if len(runs) < 2:  # there is nothing to compare
        return None
    files = [dict(_leaves(yaml.safe_load(run.run_file or "{}"))) for run in runs]
    groups: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for index, each in enumerate(files):
        key = tuple(sorted((path, value) for path, value in each.items() if path not in _IGNORED))
        groups[key].append(index)
    named = [*groups.values()]
    return Comparison(
        runs=[
            ComparedRun(
                uid=run.summary.uid, name=run.summary.name, label=f"{run.summary.name} {run.summary.uid}"
            )
            for run in runs
        ],
        metrics=[*_metrics(runs, named)],
        differences=[
            Difference(path=path, values=[each.get(path, "") for each in files])
            for path in dict.fromkeys(path for each in files for path in each)
            if len({each.get(path) for each in files}) > 1
        ],
    )


def _metrics(runs: Sequence[RunDocument], groups: list[list[int]]) -> Iterator[MetricComparison]:
    values = [
        {
            (phase.name, name): value
            for phase in run.summary.phases
            for name, value in phase.metrics.items()
            if math.isfinite(value)
        }
        for run in runs
    ]
    for key in dict.fromkeys(key for each in values for key in each):
        for number, members in enumerate(groups, 1):
            found = [value for index in members if (value := values[index].get(key)) is not None]
            if not found:
                continue
            mean, low, high = interval(found)
            yield MetricComparison(
                phase=key[0],
                metric=key[1],
                group=f"{number} ({len(members)} seeds)" if len(members) > 1 else str(number),
                values=[values[index].get(key) if index in members else None for index in range(len(runs))],
                mean=mean,
                low=low,
                high=high,
                n=len(found),
            )


def interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Mean, and the ends of its interval; None of one value alone."""
    if len(values) < 2:  # one value has no spread
        return None, None, None
    mean = statistics.fmean(values)
    half = student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def student_t(degrees: int, confidence: float = CONFIDENCE) -> float:
    """The t with which a value of Student's distribution lies within ±t with this probability, by bisection of `_within`."""
    low, high = 0.0, 1.0
    while _within(high, degrees) < confidence:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if _within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return high


def _within(t: float, degrees: int) -> float:
    """The probability of |T| <= t, exact for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    total = term = (cosine if odd else 1.0) if degrees > 1 else 0.0
    for number in range(2 + odd, degrees - 1, 2):
        term *= cosine * cosine * (number - 1) / number
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The keys of a run file with their values as text: ``phases[0].simulate.episodes``. A phase or task has its name instead of its
    number.
    """
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        for number, each in enumerate(value):
            name = (each.get("name") or each.get("id") or number) if isinstance(each, dict) else number
            yield from _leaves(each, f"{path}[{name}]")
    else:
        text = yaml.safe_dump(value, default_flow_style=True, width=1 << 20).strip()
        yield path, text.removesuffix("...").strip()
