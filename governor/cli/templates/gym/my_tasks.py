"""The task: a function that reads what the run has recorded, and returns numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from governor.tasks import TaskContext


def learning_curve(phase: str, episodes: int, context: TaskContext) -> dict[str, float]:
    """The mean return of the first and of the last `episodes` episodes of a phase."""
    with (context.run_folder / "episodes" / f"{phase}.jsonl").open() as lines:
        recorded = sorted((json.loads(line) for line in lines), key=lambda episode: episode["index"])
    returns = np.array([episode["value"] for episode in recorded])
    return {
        "return_first": float(returns[:episodes].mean()),
        "return_last": float(returns[-episodes:].mean()),
    }
