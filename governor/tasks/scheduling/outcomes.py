"""The batches and the outcomes of their runs: results, retries, cancellations, ends.

Every decision on a run is recorded here, whatever its cause: the end of the run, a deadline, an exit of the runner, a
cancellation. Effects are appended to `effects`, which the core empties.
"""

from __future__ import annotations

from collections import deque
from itertools import count, islice
from typing import TYPE_CHECKING, Final

from governor.failures import kind_of, traceback_of
from governor.messages import TaskRecord
from governor.tasks.scheduling.batch import Batch
from governor.tasks.scheduling.events import (
    AttemptClosed,
    AttemptEnded,
    BatchEnded,
    BatchSpec,
    RunEnded,
    SchedulerEffect,
    SchedulingLimits,
    Shape,
)
from governor.tasks.scheduling.runner_slots import Job, Termination
from governor.tasks.scheduling.task_node import SubTask, TaskNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from governor.tasks.api import BatchId
    from governor.tasks.protocol.wire import Over
    from governor.tasks.scheduling.ready_queue import ReadyQueue

PORTION: Final = 4096
"""Runs that one event ends at most besides those that it reports: a sub-task or a batch may have a million."""
RUNS_AHEAD: Final = 256
"""Runs by which a runner may be ahead of its reports that were read."""
LEAST: Final = 0.001
"""Seconds; a sub-task with less of its budget left is not retried."""


class Outcomes:
    """All active batches. `pending` counts their runs without an outcome."""

    def __init__(self, *, ready: ReadyQueue) -> None:
        self.batches: dict[BatchId, Batch] = {}
        self.pending = 0
        self.now = 0.0
        """Of the event that is handled; the caller sets it."""
        self.effects: list[SchedulerEffect] = []
        self.ended: list[Batch] = []
        """Batches that ended since the core last checked."""
        self.reached: list[Batch] = []
        """Batches that reached `min_num` since the core last checked."""
        self.failing: list[Batch] = []
        """Batches that passed a bound of their failures since the core last checked."""
        self._ready = ready
        self._why_never: dict[Shape, str] = {}
        """Why there can be no runner of a shape."""
        self._orders = count()
        self._followers: deque[tuple[Batch, Iterator[object]]] = deque()
        """Each ends a run when it is asked for the next one; one after the other."""
        self._at_once = PORTION
        """Runs of sub-tasks that may end at once before the next `end_followers`."""

    def submit(self, spec: BatchSpec, limits: SchedulingLimits | None, *, held: bool) -> None:
        batch = Batch(spec, order=next(self._orders), limits=limits)
        self.batches[batch.id] = batch
        self.pending += batch.left
        followers, ready = batch.begin()
        self._follow(batch, followers)
        if batch.bounds is not None and batch.bounds.exceeded:
            self._end_failing(batch)
        if held:
            batch.held = ready
        else:
            self._enqueue(batch, ready)
        self._check_end(batch)

    def release(self, batch: Batch, *, error: str) -> None:
        """Enqueues the held tasks of the batch; with an error, they fail."""
        ready, batch.held = batch.held, []
        if not error:
            self._enqueue(batch, ready)
            return
        for node in ready:
            self._fail_node(node, error)

    def set_unschedulable(self, shape: Shape, why: str | None) -> None:
        """Records why there can be no runner of this shape; None: there can be one again."""
        if why is None:
            self._why_never.pop(shape, None)
            return
        self._why_never[shape] = why
        self.fail_waiting(shape, why)

    def fail_waiting(self, shape: Shape, why: str) -> None:
        """Fails all sub-tasks that wait for a runner of this shape, without a retry; later ones may get a runner."""
        queues: list[Shape | int] = [shape] if shape else [shape, *self._ready.pins()]
        for queue in queues:
            for entry in self._ready.empty(queue):
                if isinstance(entry, SubTask):
                    self._fail_unschedulable(entry, why)
                else:
                    self._fail_node(entry.node, why, begin=entry.base)

    # -- one attempt ----------------------------------------------------------------------------------------

    def succeed(self, job: Job, report: Over) -> None:
        """Records the result of a run."""
        attempt, subtask = job.attempt, job.subtask
        subtask.unended -= 1
        record = TaskRecord(
            task=attempt.task.id,
            run=report.run,
            outcome="succeeded",
            attempts=attempt.number,
            seconds=report.seconds,
            value=report.value,
            value_file=report.value_file,
            metrics=report.metrics,
        )
        self._record(subtask.node, record, report.payload)

    def fail(self, job: Job, run: int, termination: Termination) -> None:
        """A run did not succeed: it is retried with the next attempt, or this is its outcome."""
        self._fail(job, run, termination, is_retried=self.is_retried(job, termination))

    def is_retried(self, job: Job, termination: Termination) -> bool:
        """Whether another attempt would follow this end."""
        attempt, task = job.attempt, job.subtask.node.spec
        if not termination.retry or job.subtask.left(self.now) <= LEAST:
            return False
        if termination.granted:
            return True
        if task.retry:
            kind = kind_of(termination.outcome, termination.error)
            return job.subtask.failures_of(kind, attempt.number) <= task.retry.get(kind, 0)
        return attempt.number <= task.retries + job.subtask.granted

    def _fail(self, job: Job, run: int, termination: Termination, *, is_retried: bool) -> None:
        if is_retried and not job.subtask.withdrawn:
            self.effects.append(
                AttemptEnded(job.attempt, run, termination.outcome, termination.error, termination.seconds)
            )
        else:
            self._end(job.subtask, run, termination, attempts=job.attempt.number)

    def close(self, job: Job, termination: Termination) -> None:
        """An attempt was ended by a decision, or by the exit of its runner."""
        self.close_files(job)
        failed = job.failed or ()
        attempts, is_retried = job.attempt.number, self.is_retried(job, termination)

        def end(run: int) -> None:
            if run not in failed:
                self._fail(job, run, termination, is_retried=is_retried)

        self._each_missing(job.subtask, end, then=lambda: self.retry_missing(job.subtask, attempts=attempts))

    def close_files(self, job: Job) -> None:
        """An attempt was ended: of all its runs, few can have begun and not ended."""
        first = max(0, job.position - 1)
        self.effects.append(AttemptClosed(job.attempt, job.attempt.runs[first : first + RUNS_AHEAD]))

    def retry_missing(self, subtask: SubTask, *, attempts: int) -> None:
        """After an attempt: runs without an outcome are retried, or cancelled."""
        if not subtask.unended:
            return
        if subtask.withdrawn:
            self._cancel_missing(subtask, attempts=attempts)
        else:
            subtask.number += 1
            subtask.spend(self.now)
            self._ready.push(subtask, self.now)

    def requeue(self, subtask: SubTask) -> None:
        """An attempt that is not counted: its sub-task goes to the front of its lane, with the same number."""
        if subtask.withdrawn:
            self._cancel_missing(subtask, attempts=subtask.number - 1)
        else:
            self._ready.push_front(subtask)

    # -- batches --------------------------------------------------------------------------------------------

    def withdraw(self, batch: Batch, error: str) -> None:
        """Cancels the runs that are on no runner."""
        followers = batch.cancel(error=error)
        pin = batch.spec.pin
        queues: set[Shape | int] = {node.shape for node in batch.nodes.values()} if pin is None else {pin}
        self._ready.drop(batch.order, queues)
        self._follow(batch, followers)

    def cancel_task(self, node: TaskNode, error: str) -> None:
        """Cancels the runs of a task that are on no runner."""
        node.withdrawn = True
        self._ready.drop_task(node)
        self._follow(node.batch, node.batch.cancel_task(node, error))

    def cancel_run(self, node: TaskNode, run: int, error: str) -> None:
        """Cancels a run that is an attempt alone, if it is on no runner."""
        batch = node.batch
        others = (*batch.closing, *(job.subtask for _, job in batch.at_work.values()))
        if node.ended(run) or any(each.has(node, run) for each in others):
            return
        self._ready.drop_run(node, run)
        self._record(node, TaskRecord(task=node.spec.id, run=run, outcome="cancelled", error=error))

    def _cancel_missing(self, subtask: SubTask, *, attempts: int) -> None:
        cancelled = Termination("cancelled", subtask.withdrawn)
        self._each_missing(subtask, lambda run: self._end(subtask, run, cancelled, attempts=attempts))

    def _end(self, subtask: SubTask, run: int, termination: Termination, *, attempts: int) -> None:
        subtask.unended -= 1
        record = TaskRecord(
            task=subtask.node.spec.id,
            run=run,
            outcome=termination.outcome,
            attempts=attempts,
            seconds=termination.seconds,
            error=str(termination.error),
            traceback=traceback_of(termination.error),
            metrics=termination.metrics or {},
        )
        self._record(subtask.node, record)

    def _record(self, node: TaskNode, record: TaskRecord, payload: bytes = b"") -> None:
        batch = node.batch
        self.effects.append(RunEnded(batch.id, record, payload))
        self.pending -= 1
        if batch.bounds is not None:
            self._count(batch, record)
        followers, ready = batch.enter(node, record)
        if followers is not None:
            self._follow(batch, followers)
        if ready:
            self._enqueue(batch, ready)
        if node.left == 0:
            self._check_end(batch)

    def _enqueue(self, batch: Batch, ready: list[TaskNode]) -> None:
        for node in ready:
            why = self._why_never.get(node.shape)
            if why is not None:
                self._fail_node(node, why)
            elif (entry := batch.subtasks(node)) is not None:
                self._ready.push(entry, self.now)

    def _fail_node(self, node: TaskNode, why: str, *, begin: int = 0) -> None:
        """Fails the runs of a task from `begin` on: none of them is in a sub-task."""
        self._follow(node.batch, node.batch.fail(node, begin, why))

    def _fail_unschedulable(self, subtask: SubTask, why: str) -> None:
        """Fails a sub-task for which there can be no runner, without a retry."""
        failed, attempts = Termination("failed", why), subtask.number - 1
        self._each_missing(subtask, lambda run: self._end(subtask, run, failed, attempts=attempts))

    # -- many ends -------------------------------------------------------------------------------------------

    def _each_missing(
        self, subtask: SubTask, end: Callable[[int], None], *, then: Callable[[], None] = lambda: None
    ) -> None:
        """Calls `end` for each run without an outcome of a sub-task that is on no runner any more, then `then`: now, or in
        portions if they are many.
        """
        batch = subtask.node.batch
        batch.closing.add(subtask)
        steps = self._steps(subtask, end, then)
        if len(subtask.runs) <= self._at_once:
            self._at_once -= len(subtask.runs)
            deque(steps, maxlen=0)
        else:
            self._followers.append((batch, steps))

    def _steps(
        self, subtask: SubTask, end: Callable[[int], None], then: Callable[[], None]
    ) -> Iterator[object]:
        for run in subtask.node.each_unended(*subtask.bounds):
            end(run)
            yield run
        subtask.node.batch.closing.discard(subtask)
        then()

    def _follow(self, batch: Batch, records: Iterator[TaskRecord | None]) -> None:
        self._followers.append((batch, self._entered(batch, records)))

    def _entered(self, batch: Batch, records: Iterator[TaskRecord | None]) -> Iterator[object]:
        for record in records:
            if record is not None:
                self.effects.append(RunEnded(batch.id, record))
                self.pending -= 1
                self._count(batch, record)
            yield record

    def _count(self, batch: Batch, record: TaskRecord) -> None:
        bounds = batch.bounds
        if bounds is not None and bounds.add(record.outcome):
            self._end_failing(batch)

    def _end_failing(self, batch: Batch) -> None:
        if batch.end == "tasks_done":
            batch.end = "failures"
            self.failing.append(batch)

    @property
    def has_followers(self) -> bool:
        return bool(self._followers)

    def end_followers(self) -> bool:
        """Ends some of the runs whose end follows from that of others, of their attempt or of their batch, and batches that are
        over by that; returns whether there are more.
        """
        most = self._at_once = PORTION
        while self._followers and most:
            batch, steps = self._followers[0]
            most -= sum(1 for _ in islice(steps, most))
            if most:
                self._followers.popleft()
                self._check_end(batch)
        return bool(self._followers)

    def _check_end(self, batch: Batch) -> None:
        """Ends a batch that is over; notes one that reached `min_num`."""
        if batch.left == 0:
            if self.batches.get(batch.id) is batch:
                del self.batches[batch.id]
                self.ended.append(batch)
                exceeded = "" if batch.bounds is None else batch.bounds.exceeded
                self.effects.append(
                    BatchEnded(batch.id, batch.end, batch.failures, batch.first_failure, exceeded)
                )
        elif batch.spec.min_num is not None and batch.tasks_succeeded >= batch.spec.min_num:
            self.reached.append(batch)
