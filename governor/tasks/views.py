"""What a `Scheduler` shows of its batches and runners: views on the engine, which does the work.

The names are those of Trinity-RFT's scheduler, so that its users find their way.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from governor import logs
from governor.tasks.api import Status
from governor.tasks.statistics import calculate_task_level_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.messages import TaskRecord
    from governor.tasks.api import BatchId, Task
    from governor.tasks.story import Attempt, AttemptEnded, AttemptStarted, BatchEnded

RUN_SECONDS = "time/run_execution"
"""Name of the metric that every completed run gets: its running time in seconds."""

log = logs.get_logger()


@dataclass(slots=True, eq=False)
class TaskWrapper:
    """A task of a batch and what is known of its runs. `metrics` and `experience_payloads` are those of the completed
    runs, in the order in which they ended; `emitted`: it stands among the completed results.
    """

    task: Task
    batch_id: BatchId
    task_id: str
    sub_task_num: int = 1
    finished_sub_task_num: int = 0
    completed_runs: int = 0
    total_runs: int = 1
    metrics: list[dict[str, float]] = field(default_factory=list)
    experience_payloads: list[bytes] = field(default_factory=list)
    first_error: str | None = None
    emitted: bool = False
    ended_runs: int = 0
    cancelled_runs: int = 0
    left_of_sub_tasks: dict[int, int] = field(default_factory=dict)

    def enter(self, record: TaskRecord, payload: bytes, *, split: int) -> None:
        """One of its runs has its outcome."""
        self.ended_runs += 1
        left = self.left_of_sub_tasks
        number = record.run // split
        left[number] = left.get(number, min(split, self.total_runs - number * split)) - 1
        if left[number] == 0:
            self.finished_sub_task_num += 1
        if record.outcome == "succeeded":
            self.completed_runs += 1
            self.metrics.append({**record.metrics, RUN_SECONDS: record.seconds})
            if payload:
                self.experience_payloads.append(payload)
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
        text = f"{self.completed_runs} of {self.total_runs} runs completed"
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
            metrics=[dict(metrics)] if metrics else [],
            message=self.message,
            task_id=self.task_id,
        )


@dataclass(frozen=True, slots=True)
class CompletedTaskResult:
    """A task whose runs have all ended, or that is handed out with some of them. It is kept until it is drained."""

    batch_id: BatchId
    task_id: str
    status: Status
    experience_payloads: list[bytes]


@dataclass(frozen=True, slots=True)
class RunningTaskState:
    """A task at work: on which runner, and whether that one is restarted when the task is cancelled."""

    task: TaskWrapper
    runner_id: int
    restart_runner_on_cancel: bool = True


class BatchView:
    """One batch of a scheduler, which may have been scheduled in several portions. A `BatchListener`."""

    def __init__(self, batch_id: BatchId, *, split: int | None) -> None:
        self.batch_id = batch_id
        self.scheduled = 0
        """Tasks so far; those that were handed out or dropped included."""
        self.tasks: dict[str, TaskWrapper] = {}
        self.completed: dict[str, TaskWrapper] = {}
        """Ended, and not handed out yet."""
        self.portions: set[int] = set()
        """Batches of the engine that have not ended."""
        self.keep_partial = False
        self.progress = 0
        """Counts runs that ended: whoever waits for progress compares it."""
        self._split = split
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def unfinished(self) -> int:
        """Tasks with runs that have no outcome."""
        return len(self.tasks)

    @property
    def succeeded(self) -> int:
        """Completed tasks, not handed out yet, of which every run succeeded."""
        return sum(task.completed_runs == task.total_runs for task in self.completed.values())

    def add(self, task: TaskWrapper) -> None:
        task.sub_task_num = -(-task.total_runs // (self._split or task.total_runs))
        self.tasks[task.task_id] = task
        self.scheduled += 1

    def forget(self, task_ids: list[str]) -> None:
        """They were not scheduled after all."""
        for task_id in task_ids:
            del self.tasks[task_id]
        self.scheduled -= len(task_ids)

    async def changed(self, timeout: float | None) -> None:
        """Returns when a task has ended, or after `timeout` seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait({future}, timeout=timeout)
        finally:
            self._waiting.discard(future)

    def wake(self) -> None:
        """Lets everybody look again who waits for this batch."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    # -- BatchListener --------------------------------------------------------------------------------------

    def attempt_started(self, started: AttemptStarted, *, pid: int, node: str) -> None:
        """It shows in the state of its runner."""

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
        self.progress += 1
        task = self.tasks.get(record.task)
        if task is None:
            return
        task.enter(record, payload, split=self._split or task.total_runs)
        if task.ended_runs < task.total_runs:
            return
        del self.tasks[record.task]
        if not task.cancelled_runs or (task.completed_runs and self.keep_partial):
            task.emitted = True
            self.completed[record.task] = task
        self.wake()

    def line(self, attempt: Attempt, run: int, level: str, text: str) -> None:
        log.info(
            "task.log", batch=self.batch_id, task=attempt.task.id, run_id=run, level_of_task=level, text=text
        )

    def batch_ended(self, ended: BatchEnded) -> None:
        if isinstance(ended.batch, int):
            self.portions.discard(ended.batch)
        self.wake()


def table(states: Mapping[int, Mapping[str, Any]]) -> str:
    """The states of runners as an aligned table, one line each."""
    keys = sorted({key for state in states.values() for key in state})
    rows = [["runner_id", *keys]]
    rows += [
        [str(runner), *(str(state.get(key, "-")) for key in keys)] for runner, state in sorted(states.items())
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
