"""The metrics of tasks and batches: which names they get, by which formula.

Rules:
1. Names and figures are those that users of Trinity-RFT compare with, to the last bit: legacy `RandomState` stream,
   seed 42, ddof 0. The global random state of the process is neither read nor written.
2. A thousand tasks take a tenth of a second, so the event loop has it done in a thread.
3. A value counts when it is a real number, bools as 0 and 1; all else is ignored. `n` of a name like ``score/mean@n``
   is the number of values of that key, so a task with failed runs reports under a smaller n.
4. NaN is a value: it makes its task's figures of that key NaN, because to leave out the runs that went wrong would
   flatter the task. In a batch such tasks are left out of their figure, so that one of thousands cannot blank it, and
   ``<key>/nan_count`` says how many; where all are NaN, so is the figure. An infinity is a value like any other.
5. The end of a name may say how its values become one: ``tokens:sum``, or ``:max``, ``:min``, ``:last``, over the runs of
   a task, and then over the tasks of a batch. Without such an end, or with ``:mean``, rules and names are as above.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from governor.tasks.trinity.bootstrap import BLOCK, N_BOOTSTRAP, SEED, resamples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from governor.tasks.api import BatchId

    Floats: TypeAlias = npt.NDArray[np.float64]
    RunMetrics: TypeAlias = Mapping[str, Any]
    TaskMetrics: TypeAlias = Mapping[str, float]

_ROWS: Final = 16
"""Rows of a table that share the drawing of resamples too large to be kept."""
_TIME: Final = re.compile(r"^time/|time/(?:task|run)_execution")
"""Keys that say how long something took: a best and a worst of them say nothing."""
_SUFFIXES: Final[Mapping[str, Callable[[Floats], Any]]] = {
    "sum": lambda values: sum(values.tolist()),  # in Python: its additions are those of published figures
    "max": np.max,
    "min": np.min,
    "last": lambda values: values[-1],
}


# ---- tasks


def calculate_task_level_metrics(metrics: Sequence[RunMetrics], is_eval: bool) -> dict[str, float]:  # noqa: FBT001  # the signature that users know
    """Metrics of one task from those of its runs.

    Training: ``key``: the mean over the runs. Evaluation: ``key/mean@n`` and ``key/std@n`` (ddof 0) over the n values
    of the key, and where n > 1, for each s of 2, 4, 8, ... below n, and n itself, ``key/best@s`` and ``key/worst@s``:
    the mean of max and min over 1000 resamples of size s (`bootstrap_metric`). Keys ``time/...`` are plain means.
    """
    return summarise_tasks([(metrics, is_eval)])[0]


def summarise_tasks(tasks: Iterable[tuple[Sequence[RunMetrics], bool]]) -> list[dict[str, float]]:
    """`calculate_task_level_metrics` of many tasks, each with its `is_eval`. Keys with the same number of values share a table."""
    results: list[dict[str, float]] = []
    tables: defaultdict[int, list[tuple[dict[str, float], str, list[float]]]] = defaultdict(list)
    for runs, is_eval in tasks:
        results.append(result := {})
        for key, values in _by_key(runs).items():
            _, reduce = _parse(key)
            if reduce is not None:
                result[key] = float(reduce(np.array(values)))
            elif not is_eval or _TIME.search(key):
                result[key] = sum(values) / len(values)
            else:
                tables[len(values)].append((result, key, values))
    for rows in tables.values():
        columns = _figures(np.array([values for *_, values in rows]))
        for name, figures in columns.items():
            for (result, key, _), figure in zip(rows, figures, strict=True):
                result[f"{key}/{name}"] = figure
    return results


def _figures(table: Floats) -> dict[str, list[float]]:
    """By the end of its name, each metric of the rows of `table`."""
    n = table.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        found = {f"mean@{n}": table.mean(axis=1).tolist(), f"std@{n}": table.std(axis=1).tolist()}
        for size in subset_sizes(n):
            found[f"best@{size}"], found[f"worst@{size}"] = _best_and_worst(table, size)
    return found


def _best_and_worst(table: Floats, size: int) -> tuple[list[float], list[float]]:
    """Mean of the best and of the worst of `size` values drawn, for each row of `table`."""
    best: list[float] = []
    worst: list[float] = []
    for first in range(0, len(table), _ROWS):
        rows = table[first : first + _ROWS]
        largest = np.empty((len(rows), N_BOOTSTRAP))
        smallest = np.empty_like(largest)
        end = 0
        for block in resamples(rows.shape[1], size, N_BOOTSTRAP, SEED):
            start, end = end, end + block.shape[1]
            some = max(1, BLOCK // block.size)
            for top in range(0, len(rows), some):
                drawn = rows[top : top + some].take(block, axis=1)
                drawn.max(axis=1, out=largest[top : top + some, start:end])
                drawn.min(axis=1, out=smallest[top : top + some, start:end])
        best += largest.mean(axis=1).tolist()
        worst += smallest.mean(axis=1).tolist()
    return best, worst


def subset_sizes(n: int) -> list[int]:
    """Sizes of resamples for n values: the powers of two below n, and n. None for a single value."""
    if n < 2:
        return []
    return [*(2**power for power in range(1, (n - 1).bit_length())), n]


def _by_key(dicts: Iterable[RunMetrics]) -> dict[str, list[float]]:
    by_key: defaultdict[str, list[float]] = defaultdict(list)
    for metrics in dicts:
        for key, value in metrics.items():
            if type(value) is float:
                by_key[key].append(value)
            elif isinstance(value, int | float | np.floating | np.integer | np.bool_):
                by_key[key].append(_as_float(value))
    for key in [key for key in by_key if key.endswith(":mean")]:
        by_key[key.removesuffix(":mean")] += by_key.pop(key)
    return by_key


def _parse(key: str) -> tuple[str, Callable[[Floats], Any] | None]:
    """Its name in a batch, and how its values become one; None: by the rules for means."""
    name, _, end = key.rpartition(":")
    reduce = _SUFFIXES.get(end) if name else None
    return (key, None) if reduce is None else (f"{name}/{end}", reduce)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


# ---- batches


def eval_prefix(batch_id: BatchId) -> str:
    """``eval/<name>``: the name of batch ``"7/aime/2024"`` is ``aime/2024``; without a slash it is the whole id."""
    text = str(batch_id)
    return f"eval/{text.partition('/')[2] if '/' in text else text}"


def summarise_batch(
    task_metrics: Iterable[TaskMetrics],
    *,
    batch_id: BatchId,
    is_eval: bool,
    finished: int,
    detailed_stats: bool = False,
) -> dict[str, float]:
    """Metrics of a batch from those of its tasks; tasks without a key don't count for it.

    Training: ``rollout/<key>/mean``, ``max`` and ``min``. Evaluation, below `eval_prefix`: the mean as ``<key>``; with
    `detailed_stats` ``<key>/mean``, ``max``, ``min`` and ``std`` (ddof 0). A key such as ``tokens:sum`` gives
    ``tokens/sum`` in both. `finished` is ``finished_task_count`` there.
    """
    prefix = eval_prefix(batch_id) if is_eval else "rollout"
    metrics: dict[str, float] = {}
    for key, values in _by_key(task_metrics).items():
        name, reduce = _parse(key)
        name = f"{prefix}/{name}"
        found = _without_nan(metrics, name, np.array(values))
        if reduce is not None:
            metrics[name] = float(reduce(found))
        else:
            _describe(metrics, name, found, is_eval=is_eval, detailed_stats=detailed_stats)
    metrics[f"{prefix}/finished_task_count"] = float(finished)
    return metrics


def _without_nan(metrics: dict[str, float], name: str, values: Floats) -> Floats:
    """The values that are none, and all of them where all are; how many were is among the metrics."""
    nan = np.isnan(values)
    nan_count = int(nan.sum())
    if nan_count:
        metrics[f"{name}/nan_count"] = float(nan_count)
    return values if nan_count == len(values) else values[~nan]


def _describe(
    metrics: dict[str, float], name: str, values: Floats, *, is_eval: bool, detailed_stats: bool
) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        mean = float(values.mean())
        if is_eval and not detailed_stats:
            metrics[name] = mean
            return
        metrics[f"{name}/mean"] = mean
        metrics[f"{name}/max"] = float(values.max())
        metrics[f"{name}/min"] = float(values.min())
        if is_eval:
            metrics[f"{name}/std"] = float(values.std())
