"""The API of the task engine: tasks, settings, results. Light to import: user code imports it, in runners too.

All times are in seconds. Names, arguments and defaults are those of Trinity-RFT's scheduler; docs/migrating.md lists the
differences.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

BatchId: TypeAlias = int | str
Counted: TypeAlias = Literal["succeeded", "ended"]
COUNTED: Final = ("succeeded", "ended")


class TaskCancelled(BaseException):
    """Raised inside a task past its deadline, or when it is cancelled: it has its grace period to clean up and end.

    No `Exception`, so that a broad ``except Exception`` does not swallow it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """Handed to a callable that takes an argument named `context`.

    `run` is the uid of the experiment run; `run_id` counts the runs of a repeated task from 0, `attempt` from 1.
    `deadline` is the moment (seconds since the epoch) at which this attempt is cancelled, None without a limit.
    `model` is the model endpoint of the runner's slot, as it was given to the scheduler. Files of the run are in
    `run_folder`. Lines of `log` are kept with what the task prints; in a script they are shown with it.
    """

    run: str
    task: str
    run_id: int
    attempt: int
    deadline: float | None
    run_folder: Path
    log: logging.Logger
    batch: BatchId = ""
    model: Any = None
    is_eval: bool = False
    tell: Callable[..., None] = field(default=lambda **_: None, repr=False)
    """``tell(model_version=3, step=7)`` sets keys of the runner's state, which its scheduler shows."""
    report: Callable[..., None] = field(default=lambda **_: None, repr=False)
    """``report(loss=0.5)`` reports numbers while the task runs. They are sent about once a second; the last finite one is a metric
    of the task, unless it returns one of that name. NaN and infinities are counted, as ``loss.nonfinite``.
    """

    @property
    def task_id(self) -> str:
        """The same as `task`."""
        return self.task


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A return value of a task with metrics, or with bytes that are not changed.

    `value` is the input of dependants, `metrics` are numbers by name. `payload` is returned by
    `Scheduler.get_payload_results` unchanged; in a run it is stored in a file of its own beside the value's
    (``results/<phase>/<task>-<run>.payload``).
    """

    value: Any = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a batch: `repeat_times` runs of one callable.

    Args:
        call: a callable, or ``module:attribute``. Called once for each run with `args` as keyword arguments, and
            with `context` (`TaskContext`) where it takes one. Async callables are awaited; a class or an object
            with ``run()`` or ``arun()`` works too.
        id: unique in its batch; None: its index in the batch.
        depends_on: ids of tasks of the same batch that must succeed before; their results are handed over as
            `inputs` where the callable takes them.
        timeout: bounds one attempt, as the scheduler's `max_timeout` does; the shorter one counts.
        retries: attempts after the first; None: the scheduler's `max_retry_times`. All attempts of a sub-task together run
            no longer than ``max_timeout * (max_retry_times + 1)``.
        is_eval: evaluation: its batch's metrics are those of `calculate_task_level_metrics(..., is_eval=True)`, and
            it waits behind training tasks of the same step.
        resources: what its runner holds: ``cpus``, ``gpus``, ``memory`` (bytes) and custom ones of Ray.
        priority: the higher one goes first, before the order of batches.
    """

    call: Callable[..., Any] | str
    args: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    repeat_times: int = 1
    depends_on: Sequence[str] = ()
    timeout: float | None = None
    retries: int | None = None
    is_eval: bool = False
    resources: Mapping[str, float] = field(default_factory=dict)
    priority: int = 0


@dataclass(frozen=True, slots=True)
class OverRollout:
    """Train batches end early: once ``ceil(tasks * (1 - ratio))`` of them are done and `wait_after_min` seconds have
    passed. `return_partial_tasks`: tasks of which only some runs are done are handed out as well.
    """

    ratio: float = 0.0
    wait_after_min: float = 30.0
    return_partial_tasks: bool = False


@dataclass(frozen=True, slots=True)
class DynamicTimeout:
    """A time-out learned from observed durations: ``min(max_timeout, ratio * mean)`` of the wall times of finished train
    sub-tasks, once `warmup_min_steps` steps were fully observed. Evaluation does not count.

    `percentile` (0 to 100) takes that percentile of the last `window` sub-tasks in place of the mean of all. The time-out
    is never less than `floor` seconds: short tasks among long ones pull the mean down.
    """

    enable: bool = False
    ratio: float = 3.0
    warmup_min_steps: int = 1
    percentile: float | None = None
    window: int = 256
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How a `Scheduler` works.

    Args:
        runner_per_model: runners for each model endpoint; without models, the number of runners.
        max_timeout: bounds an attempt, also one with a longer time-out of its own, and how long a sub-task may be overtaken in the queue.
        max_retry_times: attempts of a sub-task after the first.
        max_repeat_times_per_runner: splits the runs of a task into sub-tasks of at most so many; None: no split.
        detailed_stats: also min, max and std in the metrics of evaluation batches.
        grace: between `TaskCancelled` and SIGKILL.
        max_pending: runs that may wait at once; `schedule` raises QueueFull beyond.
        stop_timeout: bounds `Scheduler.stop`.
        address: of a Ray cluster (``host:port``); None: that of ``ray.init`` in this process, else of a head of its
            own that ends with the scheduler.
        num_cpus: of such a head; None: those of the machine.
        import_path: folders that runners put in front of ``sys.path``.
        min_num_counts: what counts for `min_num`: tasks that succeeded, or all that ended; then failures alone may do.
        idle_timeout: how long idle runners are kept for the next call or scheduler of this process, as long as Ray stays
            connected; 0: they end at once.

    Raises:
        ValueError: a setting is invalid; the message names it, and the allowed values.
    """

    runner_per_model: int = 8
    max_timeout: float = 1800.0
    max_retry_times: int = 2
    max_repeat_times_per_runner: int | None = None
    over_rollout: OverRollout = OverRollout()
    dynamic_timeout: DynamicTimeout = DynamicTimeout()
    detailed_stats: bool = False
    grace: float = 1.0
    max_pending: int = 1_000_000
    stop_timeout: float = 30.0
    address: str | None = None
    num_cpus: int | None = None
    import_path: Sequence[str] = ()
    min_num_counts: Counted = "succeeded"
    idle_timeout: float = 60.0

    def __post_init__(self) -> None:
        """Raises ValueError, which names the allowed values."""
        rollout = self.over_rollout
        faults = [
            f"{name} must be {allowed}, not {value!r}"
            for name, value, right, allowed in (
                _whole("runner_per_model", self.runner_per_model, 1),
                _seconds("max_timeout", self.max_timeout, positive=True),
                _whole("max_retry_times", self.max_retry_times, 0),
                _whole("max_repeat_times_per_runner", self.max_repeat_times_per_runner, 1, or_none=True),
                _seconds("grace", self.grace),
                _whole("max_pending", self.max_pending, 1),
                _seconds("stop_timeout", self.stop_timeout),
                _seconds("idle_timeout", self.idle_timeout),
                _whole("num_cpus", self.num_cpus, 1, or_none=True),
                _seconds("over_rollout.wait_after_min", rollout.wait_after_min),
                _share("over_rollout.ratio", rollout.ratio),
                _one_of("min_num_counts", self.min_num_counts, COUNTED),
            )
            if not right
        ]
        if faults:
            raise ValueError("; ".join(faults))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _whole(name: str, value: object, least: int, *, or_none: bool = False) -> tuple[str, object, bool, str]:
    right = isinstance(value, int) and not isinstance(value, bool) and value >= least
    allowed = f"a whole number, {least} or more" + (", or None" if or_none else "")
    return name, value, right or (or_none and value is None), allowed


def _seconds(name: str, value: float, *, positive: bool = False) -> tuple[str, object, bool, str]:
    right = _is_number(value) and (value > 0 if positive else value >= 0)
    return name, value, right, f"seconds, {'more than 0' if positive else '0 or more'}"


def _share(name: str, value: float) -> tuple[str, object, bool, str]:
    return name, value, _is_number(value) and 0 <= value <= 1, "from 0 to 1"


def _one_of(name: str, value: str, known: Sequence[str]) -> tuple[str, object, bool, str]:
    return name, value, value in known, " or ".join(map(repr, known))


@dataclass(frozen=True, slots=True)
class Status:
    """How a task ended. Where a scheduler hands it out, `metrics` holds one dict, of the task
    (`calculate_task_level_metrics` of its completed runs); it is empty when no run is completed.
    """

    completed_runs: int
    total_runs: int
    metrics: list[dict[str, float]] = field(default_factory=list)
    message: str = ""
    task_id: str = ""

    @property
    def ok(self) -> bool:
        """Whether all runs are completed."""
        return self.completed_runs == self.total_runs


def sort_batch_id(batch_id: BatchId) -> tuple[float, int]:
    """Sort key of a batch in the queue: int n is (n, 0), ``"n/name"`` is (n, 1), other strings come last. Raises TypeError."""
    if isinstance(batch_id, int) and not isinstance(batch_id, bool):
        return (batch_id, 0)
    if not isinstance(batch_id, str):
        raise TypeError(
            f"a batch id must be an int or a str, not {type(batch_id).__name__}: {batch_id!r:.80}"
        )
    number = re.match(r"\d+", batch_id)
    return (float("inf"), 1) if number is None else (int(number[0]), 1)
