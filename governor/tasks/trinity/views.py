"""What a `Scheduler` shows of its batches and runners: views on the engine, which does the work.

The names are those of Trinity-RFT's scheduler, so that its users find their way.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from governor import logs
from governor.tasks.api import Status
from governor.tasks.ports import BatchListener
from governor.tasks.trinity.statistics import calculate_task_level_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from governor.messages import TaskRecord
    from governor.tasks.api import BatchId, Task
    from governor.tasks.engine import Engine
    from governor.tasks.scheduling.dynamic_timeout import TimeoutEstimator
    from governor.tasks.scheduling.events import (
        Attempt,
        AttemptEnded,
        BatchEnded,
    )
    from governor.tasks.trinity.result_store import StoredBatch

Order: TypeAlias = Literal["tasks", "ended"]
ORDERS: Final = ("tasks", "ended")

RUN_SECONDS = "time/run_execution"
"""Name of the metric that every completed run gets: its running time in seconds."""

log = logs.get_logger()
_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class TaskWrapper:
    """A task of a batch and what is known of its runs. `metrics` and `experience_payloads` are those of the completed
    runs, in the order of the runs; evaluation has no payloads. `emitted`: it stands among the completed results.
    """

    task: Task
    batch_id: BatchId
    sub_task_num: int = 1
    finished_sub_task_num: int = 0
    completed_runs: int = 0
    total_runs: int = 0
    metrics: list[dict[str, float]] = field(default_factory=list)
    experience_payloads: list[bytes] = field(default_factory=list)
    first_error: str | None = None
    emitted: bool = False
    task_id: str = ""
    index: int = 0
    """Its place among the tasks of its batch."""
    keep_partial: bool = False
    """Hand it out with the runs that it has when the others are cancelled."""
    first_run: int = 0
    ended_runs: int = 0
    cancelled_runs: int = 0
    ended_of_sub_tasks: Counter[int] = field(default_factory=Counter)
    runs: list[int] = field(default_factory=list)
    """Those of `metrics`."""
    payload_runs: list[int] = field(default_factory=list)
    """Those of `experience_payloads`."""

    def enter(self, record: TaskRecord, payload: bytes, *, split: int) -> None:
        """One of its runs has its outcome."""
        self.ended_runs += 1
        number = (record.run - self.first_run) // split
        self.ended_of_sub_tasks[number] += 1
        if self.ended_of_sub_tasks[number] == min(split, self.total_runs - number * split):
            self.finished_sub_task_num += 1
        if record.outcome == "succeeded":
            self.completed_runs += 1
            _insert(self.runs, record.run, self.metrics, {**record.metrics, RUN_SECONDS: record.seconds})
            if payload:
                _insert(self.payload_runs, record.run, self.experience_payloads, payload)
            return
        if record.outcome == "cancelled":
            self.cancelled_runs += 1
        elif self.first_error is None:
            self.first_error = f"run {record.run} {record.outcome}: {record.error}"

    @property
    def message(self) -> str:
        """Why it is not complete, or nothing."""
        if self.completed_runs == self.total_runs:
            return ""
        text = f"{self.completed_runs}/{self.total_runs} runs completed successfully"
        if self.cancelled_runs:
            text += f", {self.cancelled_runs} cancelled"
        return f"{text}; first error: {self.first_error}" if self.first_error else text

    def status(self, metrics: Mapping[str, float] | None = None) -> Status:
        """Its status; `metrics` where they were computed already."""
        if metrics is None:
            metrics = calculate_task_level_metrics(self.metrics, self.task.is_eval)
        return Status(
            completed_runs=self.completed_runs,
            total_runs=self.total_runs,
            metrics=[dict(metrics)],
            message=self.message,
            task_id=self.task_id,
        )


@dataclass(frozen=True, slots=True)
class CompletedTaskResult:
    """A task whose runs have all ended, or that is handed out with some of them. It is kept until it is drained."""

    batch_id: BatchId
    task_id: str
    status: Status
    experience_payloads: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunningTaskState:
    """A task at work: on which runner, and whether that one is restarted when the task is cancelled. It is, unless who
    cancels says otherwise (``abort_batch(restart_runners=False)``).
    """

    task: TaskWrapper
    runner_id: int
    restart_runner_on_cancel: bool = True


def check_order(order: str) -> None:
    """Raises ValueError for another than those of `Order`."""
    if order not in ORDERS:
        raise ValueError(f"order must be {' or '.join(map(repr, ORDERS))}, not {order!r}")


@dataclass(slots=True)
class Totals:
    """What has ended of all train batches of a scheduler: batches, tasks, sub-tasks, and the seconds of the sub-tasks."""

    steps: int = 0
    tasks: int = 0
    sub_tasks: int = 0
    running_time: float = 0.0


class Notifier:
    """Wakes its waiters. `run_ended_at` is when a run last ended, in monotonic seconds."""

    def __init__(self) -> None:
        self.run_ended_at = float("-inf")
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wakes all waiters."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, seconds: float | None = None) -> None:
        """Returns after the next `notify`, or after `seconds`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait({future}, timeout=seconds)
        finally:
            self._waiting.discard(future)


class BatchView(BatchListener):
    """One batch of a scheduler, which may have several submissions. A `SchedulingLimits` too: the step of the dynamic
    time-out is the batch, which has been observed when none of its submissions is left.

    Args:
        split: runs of one sub-task. everywhere: the notifier of all batches. totals: those of all batches.
        estimator: of the dynamic time-out.
    """

    def __init__(
        self,
        batch_id: BatchId,
        *,
        split: int | None,
        estimator: TimeoutEstimator,
        everywhere: Notifier | None = None,
        totals: Totals | None = None,
    ) -> None:
        self.batch_id = batch_id
        self.split = split
        self.stored: StoredBatch | None = None
        """Its permanent results, if any."""
        self.scheduled = 0
        """Tasks so far; those that were handed out or dropped included."""
        self.tasks: dict[str, TaskWrapper] = {}
        """Those with runs that have no outcome."""
        self.completed: dict[str, TaskWrapper] = {}
        """Ended, and not handed out yet."""
        self._being_returned: dict[str, TaskWrapper] = {}
        """Taken out for a caller that may still be cancelled."""
        self.succeeded = 0
        """Those of `completed` of which every run succeeded."""
        self.submissions: dict[int, Callable[[int], None]] = {}
        """Batches of the engine that have not ended; each is called with its number when it has."""
        self.changed = Notifier()
        self._everywhere = everywhere or Notifier()
        self._estimator = estimator
        self._totals = totals or Totals()
        self._observed = False
        """Whether it has a train sub-task that has ended since it was counted as a step."""

    def begin(self, submission: int, tasks: Sequence[TaskWrapper], *, ended: Callable[[int], None]) -> None:
        """A batch of the engine is about to be submitted; `ended` is called when it has ended. Raises ValueError for ids of
        tasks that were not handed out yet.
        """
        owned = self.tasks.keys() | self.completed.keys() | self._being_returned.keys()
        known = [task.task_id for task in tasks if task.task_id in owned]
        if known:
            raise ValueError(
                f"batch {self.batch_id!r} has tasks of these ids already: {', '.join(known[:10])}"
            )
        for index, task in enumerate(tasks, start=self.scheduled):
            task.index = index
            task.sub_task_num = -(-task.total_runs // (self.split or task.total_runs))
            self.tasks[task.task_id] = task
        self.scheduled += len(tasks)
        self.submissions[submission] = ended

    def forget(self, submission: int, tasks: Sequence[TaskWrapper]) -> None:
        """The engine has refused it."""
        for task in tasks:
            self.tasks.pop(task.task_id, None)
        self.scheduled -= len(tasks)
        self.submissions.pop(submission, None)

    def cancel(self, engine: Engine, *, reason: str, gentle: bool = False) -> None:
        """Cancels what has not ended."""
        for submission in list(self.submissions):
            engine.cancel(submission, reason=reason, gentle=gentle)

    @property
    def is_empty(self) -> bool:
        """Whether all that was scheduled has ended and was handed out."""
        return not (self.tasks or self.completed or self._being_returned)

    @contextmanager
    def taken(self) -> Iterator[list[TaskWrapper]]:
        """Takes the completed tasks out, for their caller; they are put back if it does not get them."""
        taken, self.completed, self.succeeded = self.completed, {}, 0
        self._being_returned |= taken
        try:
            yield list(taken.values())
        except BaseException:
            self.completed = taken | self.completed
            self.succeeded += sum(map(_succeeded, taken.values()))
            raise
        finally:
            for task_id in taken:
                del self._being_returned[task_id]
            self.wake()

    def end(self) -> None:
        """The engine is closed: runs without an outcome will have none."""
        self.tasks.clear()
        self.submissions.clear()
        self.wake()

    def wake(self) -> None:
        """Wakes all callers that wait for this batch."""
        self.changed.notify()
        self._everywhere.notify()

    # -- BatchListener --------------------------------------------------------------------------------------

    def attempt_ended(self, ended: AttemptEnded) -> None:
        attempt = ended.attempt
        log.info(
            "task.retried",
            batch=self.batch_id,
            task=attempt.task.id,
            run_id=ended.run,
            attempt=attempt.number,
            outcome=ended.outcome,
            error=ended.error,
        )

    def run_ended(self, record: TaskRecord, payload: bytes) -> None:
        self._everywhere.run_ended_at = time.monotonic()
        if self.stored is not None:
            self.stored.enter(record)
        self._enter(record, payload)

    def inherit(self, records: Iterable[TaskRecord]) -> None:
        """Enters runs that were stored by an earlier scheduler."""
        for record in records:
            self._enter(record, b"")

    def _enter(self, record: TaskRecord, payload: bytes) -> None:
        task = self.tasks.get(record.task)
        if task is None:
            return
        if task.task.is_eval:
            payload = b""
        elif self.stored is not None:
            payload = self.stored.payload(record)
        task.enter(record, payload, split=self.split or task.total_runs)
        if task.ended_runs < task.total_runs:
            return
        del self.tasks[record.task]
        if not task.cancelled_runs or (task.completed_runs and task.keep_partial):
            task.emitted = True
            self._totals.tasks += not task.task.is_eval
            self.completed[record.task] = task
            self.succeeded += _succeeded(task)
        self.wake()

    def traceback(self, attempt: Attempt, run: int, text: str) -> None:
        log.error("task.traceback", batch=self.batch_id, task=attempt.task.id, run_id=run, text=text)

    def batch_ended(self, ended: BatchEnded) -> None:
        if isinstance(ended.batch, int):
            submission_ended = self.submissions.pop(ended.batch, None)
            if submission_ended is not None:
                submission_ended(ended.batch)
        self.wake()

    # -- SchedulingLimits -----------------------------------------------------------------------------------

    def limit(self, timeout: float | None = None) -> float | None:
        return self._estimator.limit(timeout)

    def observe(self, _: BatchId, seconds: float, is_eval: bool) -> None:  # noqa: FBT001  # as SchedulingLimits has it
        self._estimator.observe(self.batch_id, seconds, is_eval)
        if not is_eval:
            self._totals.sub_tasks += 1
            self._totals.running_time += seconds
            self._observed = True

    def step_done(self, step: BatchId) -> None:
        if self.submissions.keys() <= {step}:
            self._estimator.step_done(self.batch_id)
            self._totals.steps += self._observed
            self._observed = False


def _insert(runs: list[int], run: int, values: list[_T], value: _T) -> None:
    """Puts the value of a run where it belongs in the order of runs."""
    at = bisect(runs, run)
    runs.insert(at, run)
    values.insert(at, value)


def _succeeded(task: TaskWrapper) -> bool:
    return task.completed_runs == task.total_runs
