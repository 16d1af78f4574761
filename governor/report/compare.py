"""Several runs side by side: their metrics with intervals over seeds (`confidence`), and the keys in which their run files differ. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import yaml

from governor.confidence import interval
from governor.report.document import ComparedRun, Comparison, Difference, MetricComparison

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from governor.report.document import RunDocument

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
