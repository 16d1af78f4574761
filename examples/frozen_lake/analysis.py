"""What the recorded episodes of the run say about its agent, with numpy: mean return with a bootstrap interval."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from governor.tasks import TaskContext, TaskResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

RESAMPLES = 2000
"""Bootstrap resamples of each run of `fit`."""


def load(phases: list[str], context: TaskContext) -> dict[str, list[float]]:
    """The returns of all complete episodes of these phases, from the files that the run wrote itself."""
    returns: dict[str, list[float]] = {}
    for phase in phases:
        with (context.run_folder / "episodes" / f"{phase}.jsonl").open(encoding="utf-8") as lines:
            episodes = [json.loads(line) for line in lines]
        complete = [episode for episode in episodes if episode["outcome"] in ("terminated", "truncated")]
        returns[phase] = [
            episode["value"] for episode in sorted(complete, key=lambda episode: episode["index"])
        ]
    return returns


def fit(inputs: dict[str, Any], context: TaskContext) -> dict[str, float]:
    """Bootstrap interval (95 %) of the mean return of each phase. Each run of the task draws samples of its own."""
    interval: dict[str, float] = {}
    for phase, returns in inputs["load"].items():
        means = bootstrap(np.asarray(returns), resamples=RESAMPLES, seed=context.run_id)
        low, high = np.quantile(means, (0.025, 0.975))
        interval |= {f"{phase}_low": float(low), f"{phase}_high": float(high)}
    return interval


def compare(inputs: dict[str, Any]) -> TaskResult:
    """The answer of the run: mean return while learning and afterwards, each with its interval over all fits."""
    metrics: dict[str, float] = {}
    for phase, returns in inputs["load"].items():
        metrics[f"{phase}_mean"] = float(np.mean(returns))
        for edge in ("low", "high"):
            metrics[f"{phase}_{edge}"] = float(np.mean([one[f"{phase}_{edge}"] for one in inputs["fit"]]))
    return TaskResult(value=metrics, metrics=metrics)


def bootstrap(returns: NDArray[np.float64], *, resamples: int, seed: int) -> NDArray[np.float64]:
    """Means of `resamples` samples with replacement, shape (resamples,). Raises ValueError without returns."""
    if returns.size == 0:
        raise ValueError("no complete episode to analyse")
    drawn = np.random.default_rng(seed).integers(returns.size, size=(resamples, returns.size))
    means: NDArray[np.float64] = returns[drawn].mean(axis=1)
    return means
