"""The batches and what becomes of their runs: outcomes, retries, withdrawals, ends.

Every decision on a run ends here, whichever way it came: by its own end, a deadline, a death, a cancellation. Effects
are appended to `effects`, which the core empties.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from governor.messages import TaskRecord
from governor.tasks.scheduling.batch import Batch, SubTask, TaskNode
from governor.tasks.scheduling.events import (
    AttemptEnded,
    BatchEnded,
    BatchSpec,
    Effect,
    RunEnded,
    SchedulingLimits,
    Shape,
)
from governor.tasks.scheduling.runner_slots import Job, Termination

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from governor.tasks.api import BatchId
    from governor.tasks.protocol.wire import Over
    from governor.tasks.scheduling.ready_queue import ReadyQueue

LEAST: Final = 0.001
"""Seconds of its budget for which a sub-task is not tried again."""


class Outcomes:
    """All living batches. `pending` counts their runs without an outcome."""

    def __init__(self, *, ready: ReadyQueue, why_never: Mapping[Shape, str]) -> None:
        self.batches: dict[BatchId, Batch] = {}
        self.pending = 0
        self.effects: list[Effect] = []
        self.ended: list[Batch] = []
        """Batches that ended since the core last looked."""
        self.reached: list[Batch] = []
        """Batches of which enough tasks have succeeded since the core last looked."""
        self._ready = ready
        self._why_never = dict(why_never)
        self._orders = count()

    def submit(
        self, spec: BatchSpec, limits: SchedulingLimits | None, now: float, *, held: bool = False
    ) -> Batch:
        batch = Batch(spec, order=next(self._orders), limits=limits)
        self.batches[batch.id] = batch
        self.pending += batch.left
        before = batch.left
        records, pieces = batch.begin()
        self.pending -= before - batch.left
        self._tell(batch, records)
        if held:
            batch.held = pieces
        else:
            self._enqueue(batch, pieces, now)
        self._look(batch)
        return batch

    def release(self, batch: Batch, now: float, *, error: str) -> None:
        """Nothing holds the batch any longer; with an error, what it has left fails."""
        pieces, batch.held = batch.held, []
        for piece in pieces:
            if any(piece.node.ended(run) for run in piece.missing):
                continue  # it was cancelled meanwhile, as a whole
            if not error:
                self._enqueue(batch, [piece], now)
            elif batch.id in self.batches:
                self._give_up(piece, error)

    def never(self, shape: Shape, why: str | None, now: float) -> None:
        """No runner of the shape will come, for this reason; or, None: there may be one again."""
        if why is None:
            self._why_never.pop(shape, None)
            return
        self._why_never[shape] = why
        self.give_up(shape, why, now)

    def give_up(self, shape: Shape, why: str, now: float) -> None:
        """What waits for a runner of the shape fails, without a retry; what comes later may find one."""
        for place in () if shape else self._ready.pins():
            while (piece := self._ready.take_pinned(place)) is not None:
                self._give_up(piece, why)
        while (piece := self._ready.take(shape, now)) is not None:
            self._give_up(piece, why)

    # -- one attempt ----------------------------------------------------------------------------------------

    def succeed(self, job: Job, said: Over, now: float) -> None:
        """A run has given its result."""
        attempt, piece = job
        piece.done(said.run)
        record = TaskRecord(
            task=attempt.task.id,
            run=said.run,
            outcome="succeeded",
            attempts=attempt.number,
            seconds=said.seconds,
            value=said.value,
            value_file=said.value_file,
            metrics=said.metrics,
        )
        self._record(piece.node, record, now, said.payload)

    def fail(self, job: Job, run: int, doom: Termination, now: float) -> None:
        """A run ended badly: for good, or it stays missing."""
        attempt, piece = job
        again = attempt.number <= attempt.task.retries and piece.left(now) > LEAST
        if doom.retry and not piece.withdrawn and again:
            self.effects.append(AttemptEnded(attempt, run, doom.outcome, doom.error, doom.seconds))
        else:
            self._end(piece, run, doom, attempts=attempt.number, now=now)

    def close(self, job: Job, failed: Collection[int], doom: Termination, now: float) -> None:
        """An attempt is over by a decision, or by the death of its runner; runs in `failed` had failed before."""
        piece = job.piece
        for run in piece.missing:
            if run not in failed:
                self.fail(job, run, doom, now)
        self.again(piece, now, attempts=job.attempt.number)

    def again(self, piece: SubTask, now: float, *, attempts: int) -> None:
        """After an attempt: what is still missing is tried again, or cancelled."""
        if not piece.missing:
            return
        if piece.withdrawn:
            self._cancel_missing(piece, now, attempts=attempts)
        else:
            piece.number += 1
            piece.spend(now)
            self._ready.push(piece, now)

    def unharmed(self, piece: SubTask, now: float) -> None:
        """An attempt that does not count: its sub-task stands in front of its lane again, with the same number."""
        if piece.withdrawn:
            self._cancel_missing(piece, now, attempts=piece.number - 1)
        else:
            self._ready.push_front(piece)

    # -- batches --------------------------------------------------------------------------------------------

    def withdraw(
        self, batch: Batch, tasks: Collection[str] | None, kept: set[tuple[TaskNode, int]], error: str
    ) -> None:
        """Cancels what no runner has."""
        before = batch.left
        records = batch.cancel(tasks=tasks, keep=kept, error=error)
        self.pending -= before - batch.left
        self._ready.drop(batch.order, {record.task for record in records})
        self._tell(batch, records)
        self._look(batch)

    def _cancel_missing(self, piece: SubTask, now: float, *, attempts: int) -> None:
        for run in piece.missing:
            self._end(piece, run, Termination("cancelled", piece.withdrawn), attempts=attempts, now=now)

    def _end(self, piece: SubTask, run: int, doom: Termination, *, attempts: int, now: float) -> None:
        piece.done(run)
        record = TaskRecord(
            task=piece.node.spec.id,
            run=run,
            outcome=doom.outcome,
            attempts=attempts,
            seconds=doom.seconds,
            error=doom.error,
        )
        self._record(piece.node, record, now)

    def _record(self, node: TaskNode, record: TaskRecord, now: float, payload: bytes = b"") -> None:
        batch = node.batch
        self.effects.append(RunEnded(batch.id, record, payload))
        before = batch.left
        records, pieces = batch.enter(node, record)
        self.pending -= before - batch.left
        if records:
            self._tell(batch, records)
        if pieces:
            self._enqueue(batch, pieces, now)
        if node.left == 0 or records:
            self._look(batch)

    def _enqueue(self, batch: Batch, pieces: list[SubTask], now: float) -> None:
        for piece in pieces:
            why = self._why_never.get(piece.shape)
            if why is None:
                self._ready.push(piece, now)
            elif batch.id in self.batches:
                self._give_up(piece, why)

    def _give_up(self, piece: SubTask, why: str) -> None:
        """No runner for it will ever come: it fails, without a retry."""
        for run in piece.missing:
            if not piece.node.ended(run):
                self._end(
                    piece, run, Termination("failed", why), attempts=piece.number - 1, now=piece.ready_at
                )

    def _tell(self, batch: Batch, records: list[TaskRecord]) -> None:
        self.effects += [RunEnded(batch.id, record) for record in records]

    def _look(self, batch: Batch) -> None:
        """Ends a batch that is over; notes one of which there is enough."""
        if batch.left == 0:
            if self.batches.get(batch.id) is batch:
                del self.batches[batch.id]
                self.ended.append(batch)
                self.effects.append(BatchEnded(batch.id, batch.end, batch.failures, batch.first_failure))
        elif batch.spec.min_num is not None and batch.tasks_succeeded >= batch.spec.min_num:
            self.reached.append(batch)
