"""The task engine. Light to import, because user code imports it in every runner: only schedulers load Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from governor.tasks.api import (
    DynamicTimeout,
    OverRollout,
    SchedulerConfig,
    Status,
    Task,
    TaskCancelled,
    TaskContext,
    TaskResult,
    sort_batch_id,
)

if TYPE_CHECKING:
    from governor.tasks.agentlab.ray_tasks import (
        execute_task_graph,
        get_elapsed_time,
        parse_and_truncate_error,
        poll_for_timeout,
        run_exp,
    )
    from governor.tasks.cluster.warm_runners import release_runners
    from governor.tasks.errors import GraphError, QueueFull, TaskFailed
    from governor.tasks.trinity.batch_state import BatchLifecycleState, BatchState
    from governor.tasks.trinity.bootstrap import bootstrap_metric
    from governor.tasks.trinity.coordinator import RolloutCoordinator
    from governor.tasks.trinity.runner_view import RunnerWrapper
    from governor.tasks.trinity.scheduler import Scheduler
    from governor.tasks.trinity.statistics import calculate_task_level_metrics
    from governor.tasks.trinity.views import CompletedTaskResult, RunningTaskState, TaskWrapper

__all__ = [
    "BatchLifecycleState",
    "BatchState",
    "CompletedTaskResult",
    "DynamicTimeout",
    "GraphError",
    "OverRollout",
    "QueueFull",
    "RolloutCoordinator",
    "RunnerWrapper",
    "RunningTaskState",
    "Scheduler",
    "SchedulerConfig",
    "Status",
    "Task",
    "TaskCancelled",
    "TaskContext",
    "TaskFailed",
    "TaskResult",
    "TaskWrapper",
    "bootstrap_metric",
    "calculate_task_level_metrics",
    "execute_task_graph",
    "get_elapsed_time",
    "parse_and_truncate_error",
    "poll_for_timeout",
    "release_runners",
    "run_exp",
    "sort_batch_id",
]

_MODULES = {
    "trinity.bootstrap": ("bootstrap_metric",),
    "trinity.batch_state": ("BatchLifecycleState", "BatchState"),
    "trinity.coordinator": ("RolloutCoordinator",),
    "errors": ("GraphError", "QueueFull", "TaskFailed"),
    "agentlab.ray_tasks": (
        "_episode_timeout",
        "execute_task_graph",
        "get_elapsed_time",
        "parse_and_truncate_error",
        "poll_for_timeout",
        "run_exp",
    ),
    "cluster.warm_runners": ("release_runners",),
    "trinity.runner_view": ("RunnerWrapper",),
    "trinity.scheduler": ("Scheduler",),
    "trinity.statistics": ("calculate_task_level_metrics",),
    "trinity.views": ("CompletedTaskResult", "RunningTaskState", "TaskWrapper"),
}


def __getattr__(name: str) -> Any:
    """Imports the other names on first use."""
    from importlib import import_module  # noqa: PLC0415  # only then

    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"governor.tasks.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
