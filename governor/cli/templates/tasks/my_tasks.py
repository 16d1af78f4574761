"""The tasks: functions. Each run of a task is a call in a process of its own kind, which can be killed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from governor.tasks import TaskContext


def load(samples: int) -> list[float]:
    """The data. What a task returns, the tasks that depend on it get."""
    return [float(number) for number in np.random.default_rng(7).normal(3.0, 1.0, samples)]


def measure(inputs: dict[str, Any], context: TaskContext) -> dict[str, float]:
    """The mean of a bootstrap sample; each of its runs draws another one. A dict of numbers: the task's metrics.

    The first attempt of run 2 hangs: it is killed after the time-out of the run file, and tried again.
    """
    if context.run_id == 2 and context.attempt == 1:
        time.sleep(3600)
    data = np.array(inputs["load"])
    sample = np.random.default_rng(context.run_id).choice(data, size=len(data))
    return {"mean": float(sample.mean())}


def report(inputs: dict[str, Any]) -> dict[str, float]:
    """The interval of all measured means: `measure` repeats, so its results are a list."""
    means = [one["mean"] for one in inputs["measure"]]
    return {"low": min(means), "high": max(means)}
