"""What goes from a scheduler's user to the engine and back: tasks and models, and results."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from governor.messages import TaskSpec
from governor.tasks.statistics import summarise_tasks
from governor.tasks.trinity.views import CompletedTaskResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.tasks.actor.functions import Functions
    from governor.tasks.api import BatchId, SchedulerConfig, Task
    from governor.tasks.trinity.views import TaskWrapper

AT_ONCE: Final = 100
"""Results that are made before the event loop has its turn: 1 ms."""


def spec_of(task: Task, index: int, *, config: SchedulerConfig, functions: Functions) -> TaskSpec:
    """The task as the engine takes it; `index` is its id when it has none.

    Raises:
        TypeError: its callable or an argument cannot be sent to a runner. ValueError: `repeat_times` is below 1.
    """
    if task.repeat_times < 1:
        raise ValueError(f"task {task.id or index}: repeat_times must be 1 or more, not {task.repeat_times}")
    args, args_key = functions.name_args(task.args)
    return TaskSpec(
        id=str(index) if task.id is None else task.id,
        call=functions.name_call(task.call),
        args=args,
        args_key=args_key,
        depends_on=tuple(task.depends_on),
        repeat=task.repeat_times,
        timeout=config.max_timeout if task.timeout is None else task.timeout,
        retries=config.max_retry_times if task.retries is None else task.retries,
        resources=dict(task.resources),
        is_eval=task.is_eval,
        priority=task.priority,
    )


def models_of(rollout: Sequence[Any], auxiliary: Sequence[Sequence[Any]]) -> list[Any]:
    """What runners get as their model, runner i the one at i mod their number."""
    if not auxiliary:
        return list(rollout)
    return [
        {
            "rollout": rollout[index] if rollout else None,
            "auxiliary": [models[index % len(models)] for models in auxiliary if models],
        }
        for index in range(max(1, len(rollout)))
    ]


async def results_of(batch_id: BatchId, tasks: Sequence[TaskWrapper]) -> list[CompletedTaskResult]:
    """Completed tasks as their user gets them; the event loop is not held."""
    metrics: dict[int, dict[str, float]] = {}
    for is_eval in (False, True):
        chosen = [task for task in tasks if task.task.is_eval is is_eval]
        found = await summarise_tasks([task.metrics for task in chosen], is_eval=is_eval)
        metrics |= {id(task): each for task, each in zip(chosen, found, strict=True)}
    results: list[CompletedTaskResult] = []
    for start in range(0, len(tasks), AT_ONCE):
        results += [
            CompletedTaskResult(
                batch_id, task.task_id, task.status(metrics[id(task)]), list(task.experience_payloads)
            )
            for task in tasks[start : start + AT_ONCE]
        ]
        await asyncio.sleep(0)
    return results
