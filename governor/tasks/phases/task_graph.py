"""The task graph of one phase of a run: a batch of the engine, reported to the governor.

Rules:
1. Events are reported in order: `TaskStarted` before `TaskEnded`, `PartEndedReport` last. An event does not wait for the
   acknowledgement of the one before.
2. A start is reported unless its good end came with it: a task that takes a millisecond is one event, not two.
3. Events are queued until the governor takes them; beyond `REPORTS_WAITING` no further task begins.
4. A runner that exits with Ray is no crash of its task: it is not reported, and the task runs again when the run is
   resumed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from governor import logs
from governor.episodes.records.tracebacks import Tracebacks
from governor.episodes.rules.failures import FailureBounds
from governor.errors import ConductorError, JournalError
from governor.failures import traceback_of
from governor.journal.readers import values_of_tasks
from governor.messages import (
    PartEndedReport,
    TaskAttemptEnded,
    TaskEnded,
    TaskReported,
    TaskStarted,
    task_and_run,
)
from governor.tasks.errors import GraphError
from governor.tasks.ports import BatchListener
from governor.tasks.protocol.wire import Input
from governor.tasks.scheduling.events import BatchSpec, TaskChanged, TaskLimitsChanged
from governor.tasks.scheduling.wait_policy import min_wait_num
from governor.tasks.work import file_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from governor.messages import ConductorEvent, ReportedSums, StartTasks, TaskRecord, TaskSpec
    from governor.messages.link import Link
    from governor.tasks.engine import Engine
    from governor.tasks.scheduling.events import (
        Attempt,
        AttemptEnded,
        AttemptStarted,
        BatchEnded,
        SchedulingLimits,
    )

REPORTS_AT_ONCE: Final = 1024
REPORTS_WAITING: Final = 16 * REPORTS_AT_ONCE
"""The queue is short where the journal is faster than the tasks; with the shortest ones it may be slower."""
log = logs.get_logger()


class PhaseTasks(BatchListener):
    """Runs one `StartTasks` from start to `PartEndedReport`."""

    def __init__(
        self,
        *,
        command: StartTasks,
        link: Link,
        engine: Engine,
        ray_answers: Callable[[], Awaitable[bool]],
        limits: SchedulingLimits | None = None,
    ) -> None:
        self.phase = command.phase
        self.progress = 0
        """Attempts begun and ended, and runs that are over."""
        self._command = command
        self._link = link
        self._engine = engine
        self._ray_answers = ray_answers
        self._limits = limits
        self._reports: deque[ConductorEvent] = deque()
        self._to_report = asyncio.Event()
        self._is_full = False
        """Too many events wait to be reported."""
        self._has_begun = False
        self._stopped: str | None = None
        """Why it was stopped before it had begun."""
        self._changed = dict(command.cancelled)
        """Tasks that were cancelled before it had begun, and why."""
        self._is_over = False
        """Nothing is reported any more."""
        self._tracebacks = Tracebacks()

    def begin(self, results: dict[str, dict[int, Input]] | None = None) -> None:
        """`results` as of `results_needed`. Raises ConductorError when the graph has faults."""
        command = self._command
        log.info(
            "tasks.begin",
            phase=command.name,
            tasks=len(command.tasks),
            done=sum(len(each.runs) for each in command.done.values()),
        )
        min_num = command.min_num
        if command.over_rollout:
            enough = min_wait_num(len(command.tasks), command.over_rollout)
            min_num = enough if min_num is None else min(min_num, enough)
        batch = BatchSpec(
            id=command.phase,
            tasks=command.tasks,
            ended=command.done,
            results=results or {},
            split=command.max_repeat_per_runner,
            min_num=min_num,
            wait_after_min=command.wait_after_min,
            rank=(float(command.phase), 0),
            grace=command.grace,
            payload_inline=False,
            folder=f"results/{file_name(command.name)}",
            bounds=FailureBounds(
                command.failures,
                sum(task.repeat for task in command.tasks),
                "runs of tasks",
                failed=command.failed,
                in_a_row=command.failed_in_a_row,
            ),
        )
        try:
            self._engine.submit(batch, self, limits=self._limits)
        except GraphError as error:
            raise ConductorError(f"the task graph has faults: {error}") from error
        self._has_begun = True
        for name, reason in self._changed.items():
            self.change(name, again=False, reason=reason)
        if self._stopped is not None:
            self.stop(self._stopped)

    async def run(self) -> None:
        """Returns when `PartEndedReport` is in the journal. Raises ConductorError when Ray is lost."""
        try:
            await self._report_all()
        finally:
            self._is_over = True
            self._reports.clear()
            self._set_full(is_full=False)  # others use the engine too

    async def _report_all(self) -> None:
        while True:
            await self._to_report.wait()
            batch = self._next_reports()
            crash = next((index for index, event in enumerate(batch) if _is_crash(event)), None)
            if crash is not None and not await self._ray_answers():
                if crash:
                    await self._link.report_all(batch[:crash])
                raise ConductorError("Ray is lost: a runner has exited, and Ray does not answer")
            await self._link.report_all(batch)
            if any(isinstance(event, PartEndedReport) for event in batch):
                return

    def stop(self, reason: str) -> None:
        """Cancels all tasks that have not ended; `PartEndedReport` with end ``stopped`` follows. It may be called before
        `begin`.
        """
        if not self._has_begun:
            self._stopped = reason
            return
        self._engine.cancel(self.phase, reason=reason or "the phase was stopped")

    def change(self, task: str, *, again: bool, reason: str) -> None:
        """Cancels a task, or a run of it (``fit[2]``), or ends what runs of it and does it again. It may be called before `begin`."""
        if self._has_begun:
            name, run = task_and_run(task)
            self._engine.change_task(TaskChanged(monotonic(), self.phase, name, reason, again, run))
        elif not again:
            self._changed[task] = reason

    def change_limits(self, tasks: Sequence[TaskSpec]) -> None:
        """These tasks have other time-outs and retries. It may be called before `begin`."""
        if self._has_begun:
            for task in tasks:
                self._engine.change_task(TaskLimitsChanged(monotonic(), self.phase, task))
            return
        new = {task.id: task for task in tasks}
        known = tuple(new.get(task.id, task) for task in self._command.tasks)
        self._command = msgspec.structs.replace(self._command, tasks=known)

    # -- BatchListener --------------------------------------------------------------------------------------

    def attempt_started(self, started: AttemptStarted, *, pid: int, node: str) -> None:
        self.progress += 1
        attempt = started.attempt
        self._queue_report(
            TaskStarted(
                phase=self.phase,
                task=attempt.task.id,
                run=started.run,
                attempt=attempt.number,
                pid=pid,
                node=node,
            )
        )

    def attempt_ended(self, ended: AttemptEnded) -> None:
        self.progress += 1
        attempt = ended.attempt
        report = TaskAttemptEnded(
            phase=self.phase,
            task=attempt.task.id,
            run=ended.run,
            attempt=attempt.number,
            outcome=ended.outcome,
            error=str(ended.error),
            seconds=ended.seconds,
            traceback=traceback_of(ended.error),
        )
        self._queue_report(self._tracebacks.take(report))

    def run_ended(self, record: TaskRecord, payload: bytes) -> None:
        del payload  # it is in a file of the run
        self.progress += 1
        self._queue_report(TaskEnded(phase=self.phase, record=self._tracebacks.take(record)))

    def reported(self, attempt: Attempt, run: int, values: dict[str, ReportedSums]) -> None:
        self.progress += 1
        self._queue_report(
            TaskReported(
                phase=self.phase, task=attempt.task.id, run=run, attempt=attempt.number, values=values
            )
        )

    def traceback(self, attempt: Attempt, run: int, text: str) -> None:
        """It goes with the end of its run."""

    def batch_ended(self, ended: BatchEnded) -> None:
        log.info("tasks.end", end=ended.end, failures=ended.failures, first_failure=ended.first_failure)
        self._queue_report(
            PartEndedReport(
                phase=self.phase,
                part="tasks",
                end=ended.end,
                failures=ended.failures,
                first_failure=ended.first_failure,
                ended_by=ended.exceeded,
                exceeded=ended.exceeded,
                tolerated=ended.failures > 0 and not ended.exceeded,
            )
        )

    # -- reports --------------------------------------------------------------------------------------------

    def _next_reports(self) -> list[ConductorEvent]:
        """The next events to be reported."""
        batch = [self._reports.popleft() for _ in range(min(len(self._reports), REPORTS_AT_ONCE))]
        if not self._reports:
            self._to_report.clear()
        if self._is_full and len(self._reports) < REPORTS_WAITING // 2:
            self._set_full(is_full=False)
        return batch

    def _queue_report(self, event: ConductorEvent) -> None:
        if self._is_over:
            return
        self._reports += (*self._tracebacks.texts(), event)
        self._to_report.set()
        if len(self._reports) >= REPORTS_WAITING and not self._is_full:
            self._set_full(is_full=True)

    def _set_full(self, *, is_full: bool) -> None:
        self._is_full = is_full
        self._engine.pause("full", paused=is_full)


def results_needed(command: StartTasks, uid: str) -> dict[str, dict[int, Input]]:
    """The results of ended runs that tasks with runs left depend on, from the journal, by task and run. Blocks. Raises
    ConductorError.
    """
    ended = {name: len(each.runs) for name, each in command.done.items()}
    unended = [task for task in command.tasks if ended.get(task.id, 0) < task.repeat]
    needed = {name for task in unended for name in task.depends_on} & ended.keys()
    found: dict[str, dict[int, Input]] = {name: {} for name in needed}
    try:
        for each in values_of_tasks(Path(command.journal), uid, command.phase) if needed else ():
            if each.task in needed and (each.value is not None or each.value_file is not None):
                found[each.task][each.run] = Input(value=each.value, file=each.value_file)
    except JournalError as error:
        raise ConductorError(str(error)) from error
    return found


def _is_crash(event: ConductorEvent) -> bool:
    match event:
        case TaskAttemptEnded(outcome="crashed"):
            return True
        case TaskEnded(record=record):
            return record.outcome == "crashed"
    return False
