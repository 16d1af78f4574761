"""The metrics of tasks and batches: which names they get, by which formula, without holding the event loop.

Rules:
1. Names and figures are those that users of Trinity-RFT compare with, to the last bit: legacy `RandomState` stream,
   seed 42, ddof 0. The global random state of the process is neither read nor written.
2. All that takes time is a generator that yields after each step, half a millisecond at most. The plain functions
   run it to its end; the `summarise` functions let the event loop turn after each slice.
3. A value counts when it is a real number, bools as 0 and 1; all else is ignored. `n` of a name like ``score/mean@n``
   is the number of values of that key, so a task with failed runs reports under a smaller n.
4. NaN is a value: it makes its task's figures of that key NaN, because to leave out the runs that went wrong would
   flatter the task. In a batch such tasks are left out of their figure, so that one of thousands cannot blank it, and
   ``<key>/nan_count`` says how many; where all are NaN, so is the figure. An infinity is a value like any other.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np

from governor.tasks.trinity.bootstrap import (
    BLOCK,
    N_BOOTSTRAP,
    SEED,
    bootstrap_metric,
    resamples,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from governor.tasks.api import BatchId

    T = TypeVar("T")
    Steps: TypeAlias = Generator[None, None, T]
    Floats: TypeAlias = npt.NDArray[np.float64]
    RunMetrics: TypeAlias = Mapping[str, Any]
    TaskMetrics: TypeAlias = Mapping[str, float]

__all__ = [
    "bootstrap_metric",
    "calculate_task_level_metrics",
    "eval_prefix",
    "subset_sizes",
    "summarise_batch",
    "summarise_tasks",
]

SLICE: Final = 0.002
"""Seconds that the `summarise` functions work before the event loop has its turn."""

_TABLE: Final = 2**12
"""Values of one table: 0.1 ms to build."""
_ROWS: Final = 16
"""Rows of a table that share the drawing of resamples too large to be kept."""
_TIME: Final = re.compile(r"^time/|time/(?:task|run)_execution")
"""Keys that say how long something took: a best and a worst of them say nothing."""


# ---- tasks


def calculate_task_level_metrics(metrics: Sequence[RunMetrics], is_eval: bool) -> dict[str, float]:  # noqa: FBT001  # the signature that users know
    """Metrics of one task from those of its runs.

    Training: ``key``: the mean over the runs. Evaluation: ``key/mean@n`` and ``key/std@n`` (ddof 0) over the n values
    of the key, and where n > 1, for each s of 2, 4, 8, ... below n, and n itself, ``key/best@s`` and ``key/worst@s``:
    the mean of max and min over 1000 resamples of size s (`bootstrap_metric`). Keys ``time/...`` are plain means.
    """
    return _finish(_tasks([metrics], is_eval=is_eval))[0]


def _tasks(tasks: Iterable[Sequence[RunMetrics]], *, is_eval: bool) -> Steps[list[dict[str, float]]]:
    return (yield from _eval_tasks(tasks)) if is_eval else (yield from _train_tasks(tasks))


def _train_tasks(tasks: Iterable[Sequence[RunMetrics]]) -> Steps[list[dict[str, float]]]:
    results: list[dict[str, float]] = []
    for runs in tasks:
        by_key = yield from _by_key(runs)
        results.append({key: _plain_mean(values) for key, values in by_key.items()})
    return results


def _eval_tasks(tasks: Iterable[Sequence[RunMetrics]]) -> Steps[list[dict[str, float]]]:
    """Values of the same key and number are gathered in one table, over several tasks where they are few."""
    results: list[dict[str, float]] = []
    tables: defaultdict[tuple[str, int], list[tuple[dict[str, float], list[float]]]] = defaultdict(list)
    gathered = 0
    for runs in tasks:
        by_key = yield from _by_key(runs)
        results.append(result := {})
        for key, values in by_key.items():
            if _TIME.search(key):
                result[key] = _plain_mean(values)
            else:
                tables[key, len(values)].append((result, values))
                gathered += len(values)
        if gathered >= _TABLE:
            yield from _fill_in(tables)
            gathered = 0
    yield from _fill_in(tables)
    return results


def _fill_in(tables: dict[tuple[str, int], list[tuple[dict[str, float], list[float]]]]) -> Steps[None]:
    for (key, n), rows in tables.items():
        names, columns = yield from _spread(key, n, np.array([values for _, values in rows]))
        for (result, _), figures in zip(rows, zip(*columns, strict=True), strict=True):
            result.update(zip(names, figures, strict=True))
        yield
    tables.clear()


def _spread(key: str, n: int, table: Floats) -> Steps[tuple[list[str], list[list[float]]]]:
    """Names of the metrics of `key`, and for each of them its figures for the rows of `table`."""
    names = [f"{key}/mean@{n}", f"{key}/std@{n}"]
    with np.errstate(invalid="ignore", over="ignore"):
        columns = [table.mean(axis=1).tolist(), table.std(axis=1).tolist()]
    yield
    for size in subset_sizes(n):
        best, worst = yield from _best_and_worst(table, size)
        names += (f"{key}/best@{size}", f"{key}/worst@{size}")
        columns += (best, worst)
    return names, columns


def _best_and_worst(table: Floats, size: int) -> Steps[tuple[list[float], list[float]]]:
    """Mean of the best and of the worst of `size` values drawn, for each row of `table`."""
    best: list[float] = []
    worst: list[float] = []
    for first in range(0, len(table), _ROWS):
        rows = table[first : first + _ROWS]
        largest = np.empty((len(rows), N_BOOTSTRAP))
        smallest = np.empty_like(largest)
        end = 0
        for block in resamples.blocks(rows.shape[1], size, N_BOOTSTRAP, SEED):
            start, end = end, end + block.shape[1]
            at_once = max(1, BLOCK // block.size)
            for top in range(0, len(rows), at_once):
                some = slice(top, top + at_once)
                drawn = rows[some].take(block, axis=1)
                drawn.max(axis=1, out=largest[some, start:end])
                drawn.min(axis=1, out=smallest[some, start:end])
                yield
        with np.errstate(invalid="ignore", over="ignore"):
            best += largest.mean(axis=1).tolist()
            worst += smallest.mean(axis=1).tolist()
    return best, worst


def subset_sizes(n: int) -> list[int]:
    """Sizes of resamples for n values: the powers of two below n, and n. None for a single value."""
    if n < 2:
        return []
    return [*(2**power for power in range(1, (n - 1).bit_length())), n]


def _by_key(dicts: Iterable[RunMetrics]) -> Steps[dict[str, list[float]]]:
    by_key: defaultdict[str, list[float]] = defaultdict(list)
    for metrics in dicts:
        for key, value in metrics.items():
            if type(value) is float:
                by_key[key].append(value)
            elif isinstance(value, int | float | np.floating | np.integer | np.bool_):
                by_key[key].append(_as_float(value))
        yield
    return by_key


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _plain_mean(values: list[float]) -> float:
    return sum(values) / len(values)


# ---- batches


def eval_prefix(batch_id: BatchId) -> str:
    """``eval/<name>``: the name of batch ``"7/aime/2024"`` is ``aime/2024``; without a slash it is the whole id."""
    text = str(batch_id)
    return f"eval/{text.partition('/')[2] if '/' in text else text}"


def _batch(
    task_metrics: Iterable[TaskMetrics], prefix: str, finished: int, *, is_eval: bool, detailed_stats: bool
) -> Steps[dict[str, float]]:
    metrics = yield from _aggregate(
        task_metrics, f"{prefix}/", is_eval=is_eval, detailed_stats=detailed_stats
    )
    metrics[f"{prefix}/finished_task_count"] = float(finished)
    return metrics


def _aggregate(
    task_metrics: Iterable[TaskMetrics], prefix: str, *, is_eval: bool, detailed_stats: bool
) -> Steps[dict[str, float]]:
    by_key = yield from _by_key(task_metrics)
    metrics: dict[str, float] = {}
    for key, values in by_key.items():
        _describe(metrics, prefix + key, np.array(values), is_eval=is_eval, detailed_stats=detailed_stats)
        yield
    return metrics


def _describe(
    metrics: dict[str, float], name: str, values: Floats, *, is_eval: bool, detailed_stats: bool
) -> None:
    nan = np.isnan(values)
    nan_count = int(nan.sum())
    if nan_count:
        metrics[f"{name}/nan_count"] = float(nan_count)
        if nan_count < len(values):
            values = values[~nan]
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


# ---- in slices


async def summarise_tasks(tasks: Iterable[Sequence[RunMetrics]], *, is_eval: bool) -> list[dict[str, float]]:
    """`calculate_task_level_metrics` of many tasks; the event loop goes on turning."""
    return await _in_slices(_tasks(tasks, is_eval=is_eval))


async def summarise_batch(
    task_metrics: Iterable[TaskMetrics],
    *,
    batch_id: BatchId,
    is_eval: bool,
    finished: int,
    detailed_stats: bool = False,
) -> dict[str, float]:
    """Metrics of a batch from those of its tasks; tasks without a key don't count for it. The event loop goes on turning.

    Training: ``rollout/<key>/mean``, ``max`` and ``min``. Evaluation, below `eval_prefix`: the mean as ``<key>``; with
    `detailed_stats` ``<key>/mean``, ``max``, ``min`` and ``std`` (ddof 0). `finished` is ``finished_task_count`` there.
    """
    prefix = eval_prefix(batch_id) if is_eval else "rollout"
    return await _in_slices(
        _batch(task_metrics, prefix, finished, is_eval=is_eval, detailed_stats=detailed_stats)
    )


def _finish(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def _in_slices(steps: Steps[T]) -> T:
    while True:
        until = time.perf_counter() + SLICE
        while time.perf_counter() < until:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
        await asyncio.sleep(0)
