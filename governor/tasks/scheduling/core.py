"""The scheduler of tasks, without sockets, clocks or Ray: events in, effects out.

Rules:
1. Every run of every task gets exactly one outcome, in whatever order events arrive; then its batch ends, once.
2. Only runs without an outcome are retried.
3. An event about a runner or ticket that is over changes nothing.

`runner_slots.py` holds the runners, `attempts.py` their work, `ready_queue.py` the order of sub-tasks, `batch.py` the
graph, `outcomes.py` outcomes and retries.
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING

from governor.tasks.scheduling.attempts import Attempts
from governor.tasks.scheduling.batch import Batch
from governor.tasks.scheduling.events import (
    BatchSubmitted,
    Cancelled,
    KillRunner,
    Released,
    Replaced,
    Resized,
    Revoked,
    RunnerGone,
    RunnerReady,
    RunnerReported,
    SchedulerEffect,
    SchedulerEvent,
    Shape,
    StartRunner,
    TaskChanged,
    TaskLimitsChanged,
    Tick,
)
from governor.tasks.scheduling.outcomes import Outcomes
from governor.tasks.scheduling.ready_queue import ReadyQueue
from governor.tasks.scheduling.runner_slots import RunnerSlots, Termination, holders

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from governor.tasks.api import BatchId
    from governor.tasks.scheduling.runner_slots import Job, RunnerSlot


class Core:
    """Batches of tasks on the runners of one driver.

    Args:
        capacity: how many runners of each shape may work at once.
        age: seconds in the queue after which a sub-task is no longer overtaken.
        grace: seconds from the cancellation of an attempt to the SIGKILL of its runner.
        runner_ids: numbers for new runners.
    """

    def __init__(
        self,
        *,
        capacity: Mapping[Shape, int],
        age: float = float("inf"),
        grace: float = 0.0,
        runner_ids: Iterator[int] | None = None,
    ) -> None:
        self.slots = RunnerSlots(runner_ids=runner_ids or count())
        self.ready = ReadyQueue(age=age)
        self.outcomes = Outcomes(ready=self.ready)
        self.batches: Mapping[BatchId, Batch] = self.outcomes.batches
        """Those that have not ended."""
        self.attempts = Attempts(slots=self.slots, outcomes=self.outcomes, grace=grace)
        self.is_paused = self.is_full = False
        """While it is paused, no further sub-task is dispatched; attempts on runners go on. While it is full, ends that follow from
        others wait. A `Tick` after it ends both.
        """
        for shape, number in capacity.items():
            self.slots.open(shape, number)

    def next_alarm(self) -> float | None:
        """When the next `Tick` is due; one too early is harmless."""
        return self.attempts.alarms.next()

    def warm(self, now: float) -> list[SchedulerEffect]:
        """Starts a runner for every plain slot; an idle one that exits is replaced from now on."""
        self.outcomes.now = now
        self.slots.keep_warm = True
        new = self.slots.scale_up((), waiting=self.slots.capacity(()), now=self.outcomes.now)
        return [StartRunner(runner, ()) for runner in new]

    def close(self) -> None:
        """From now on no runner is started."""
        self.slots.is_closed = True

    def on(self, event: SchedulerEvent) -> list[SchedulerEffect]:  # noqa: C901, PLR0912  # one answer for each kind of event
        """The effects of the event; none for one that comes too late."""
        self.outcomes.now = max(self.outcomes.now, event.now)
        match event:
            case RunnerReported():
                self.attempts.on_reported(event)
            case RunnerReady():
                slot = self.slots.get(event.runner)
                if slot is not None and slot.state == "starting":
                    self.slots.ready(slot)
            case RunnerGone():
                self.attempts.on_gone(event)
            case Revoked():
                self.attempts.on_revoked(event)
            case BatchSubmitted():
                self.outcomes.submit(event.batch, event.limits, held=event.held)
            case Released():
                if event.batch in self.batches:
                    self.outcomes.release(self.batches[event.batch], error=event.error)
            case Cancelled():
                self._cancelled(event)
            case TaskChanged():
                self._task_changed(event)
            case TaskLimitsChanged():
                self.attempts.change_limits(self.batches.get(event.batch), event.task)
            case Replaced():
                self._replaced(event)
            case Resized():
                self._resized(event)
            case Tick():
                self._tick()
        self._reconcile()
        effects, self.outcomes.effects = self.outcomes.effects, []
        return effects

    # -- batches --------------------------------------------------------------------------------------------

    def _cancelled(self, event: Cancelled) -> None:
        batch = self.batches.get(event.batch)
        if batch is None:
            return
        if batch.end == "tasks_done":
            batch.end = "stopped"
        self._withdraw(batch, event.reason or "it was cancelled", gentle=event.gentle)

    def _withdraw(self, batch: Batch, error: str, *, gentle: bool) -> None:
        """Cancels waiting runs at once, and those on a runner when it has stopped them."""
        for subtask in batch.closing:
            subtask.withdrawn = error
        for slot, job in batch.at_work.values():
            job.subtask.withdrawn = error
            if slot.state == "working" and job is slot.jobs[0]:
                seconds = job.elapsed(self.outcomes.now)
                if batch.end == "enough":
                    self.attempts.observe(job, self.outcomes.now)
                termination = Termination(
                    "cancelled", error, retry=False, keep_runner=gentle, seconds=seconds
                )
                self.attempts.terminate(slot, termination)
            elif slot.state == "working":
                self.attempts.revoke(slot)
        self.outcomes.withdraw(batch, error)

    def _task_changed(self, event: TaskChanged) -> None:
        batch = self.batches.get(event.batch)
        node = None if batch is None else batch.nodes.get(event.task)
        if batch is None or node is None:
            return
        if event.run is not None and not (event.run < node.spec.repeat and batch.runs_of_attempt(node) == 1):
            return  # another value of `repeat` or `max_repeat_per_runner` counts by now
        for slot, job in [each for each in batch.at_work.values() if each[1].subtask.has(node, event.run)]:
            self._attempt_changed(slot, job, event)
        if event.again:
            return
        for subtask in batch.closing:
            if subtask.has(node, event.run):
                subtask.withdrawn = subtask.withdrawn or event.reason
        if event.run is None:
            self.outcomes.cancel_task(node, event.reason)
        else:
            self.outcomes.cancel_run(node, event.run, event.reason)

    def _attempt_changed(self, slot: RunnerSlot, job: Job, event: TaskChanged) -> None:
        is_first = job is slot.jobs[0]
        if not event.again:
            job.subtask.withdrawn = job.subtask.withdrawn or event.reason
            if (ending := job.termination) is not None and self.outcomes.is_retried(job, ending):
                job.termination = ending._replace(outcome="cancelled", error=event.reason)
        elif slot.state == "working" and is_first and job.run is not None:
            job.subtask.granted += 1
        elif is_first and job.termination is not None and job.termination.outcome == "timed_out":
            job.subtask.granted += 1  # it ends already, and is repeated
            job.termination = job.termination._replace(granted=True)
        else:
            return  # it has not begun, or is ended already
        if slot.state == "working" and is_first:
            seconds = job.elapsed(self.outcomes.now)
            ended = Termination(
                "cancelled", event.reason, retry=event.again, granted=event.again, seconds=seconds
            )
            self.attempts.terminate(slot, ended)
        elif slot.state == "working":
            self.attempts.revoke(slot)

    def _minimum_reached(self, batch: Batch) -> None:
        """`min_num` tasks have succeeded: the others have `wait_after_min` seconds left."""
        if batch.enough_at is None:
            batch.enough_at = self.outcomes.now + batch.spec.wait_after_min
            self.attempts.alarms.set(batch.enough_at, batch)
        if batch.enough_at <= self.outcomes.now and batch.end == "tasks_done":
            batch.end = "enough"
            self._withdraw(batch, "enough tasks of the batch have succeeded", gentle=False)

    def _end_failing(self) -> None:
        """Cancels what is left of batches that passed a bound of their failures."""
        failing, self.outcomes.failing = self.outcomes.failing, []
        for batch in failing:
            if self.batches.get(batch.id) is batch and batch.bounds is not None:
                error = f"more failed than {batch.bounds.exceeded} allows"
                self._withdraw(batch, error, gentle=False)

    # -- runners --------------------------------------------------------------------------------------------

    def _replaced(self, event: Replaced) -> None:
        slot = self.slots.at_index(event.slot_index)
        if slot is not None and slot.state in ("idle", "working", "ending"):
            self.slots.mark_replaced(slot, replace=True)

    def _replace(self) -> None:
        """Kills a runner that is to be replaced, once there is a spare that no other slot needs."""
        old = self.slots.next_replaced()
        if old is not None and self.slots.has_spare(old.shape):
            self.slots.mark_replaced(old, replace=False)
            self.attempts.kill(old, Termination("crashed", "its runner was restarted on request"))

    def _resized(self, event: Resized) -> None:
        for shape, number in event.slots.items():
            self.slots.open(shape, number)
            self.outcomes.set_unschedulable(shape, event.why_never.get(shape))

    # -- time ----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        for target in self.attempts.alarms.due(self.outcomes.now):
            if isinstance(target, Batch):
                if self.batches.get(target.id) is target:
                    self._minimum_reached(target)
            elif target is not None and target.alarm_at is not None and target.alarm_at <= self.outcomes.now:
                target.alarm_at = None
                self.attempts.check(target)

    # -- after every event ----------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Announces started runs, ends batches that reached `min_num`, assigns sub-tasks and scales runners."""
        self.attempts.announce_started()
        reached, self.outcomes.reached = self.outcomes.reached, []
        for batch in reached:
            self._minimum_reached(batch)
        self._end_failing()
        if not self.is_full and self.outcomes.end_followers():
            self.attempts.alarms.set(self.outcomes.now, None)
        ended, self.outcomes.ended = self.outcomes.ended, []
        for batch in ended:
            if batch.limits is not None and batch.end != "stopped":
                batch.limits.step_done(batch.id)
        self._replace()
        if not self.is_paused:
            self._assign_pinned()
        for shape in self.slots.shapes():
            self._preempt_idle(shape)
            if not self.is_paused:
                self._assign(shape)
            waiting = self.ready.waiting(shape) + (0 if shape else self.ready.pinned)
            for slot in self.slots.scale_down(shape, waiting=waiting):
                self.attempts.emit(KillRunner(slot.runner, "not needed any more", is_idle=True))
            for runner in self.slots.scale_up(shape, waiting=waiting, now=self.outcomes.now):
                self.attempts.emit(StartRunner(runner, shape))

    def _preempt_idle(self, shape: Shape) -> None:
        """Kills as many idle runners as needed, where a more urgent sub-task of another shape needs their resources."""
        idle = self.slots.idle(shape)
        if not shape or not idle or not self.ready.waiting(shape):
            return
        own = self.ready.urgency(shape, self.outcomes.now)
        for other in self.slots.shapes():
            needed = holders(shape, other) - self.slots.dying(shape)
            if (
                needed <= 0
                or other == shape
                or not self.ready.waiting(other)
                or not self.slots.all_starting(other)
            ):
                continue
            if self.ready.urgency(other, self.outcomes.now) < own:
                for slot in list(islice(idle, needed)):
                    self.slots.mark_dying(slot)
                    self.attempts.emit(
                        KillRunner(
                            slot.runner, "its resources are needed for something more urgent", is_idle=True
                        )
                    )

    def _assign_pinned(self) -> None:
        """Looks at the slots alone that got a sub-task, or became idle, in this event."""
        freed = self.slots.take_freed()
        for slot_index in self.ready.take_changed_pins(freed):
            slot = self.slots.at_index(slot_index)
            if slot is None or slot.state != "idle":
                continue
            subtask = self.ready.take(slot_index, self.outcomes.now)
            if subtask is not None:
                self.attempts.dispatch(slot, [subtask])

    def _assign(self, shape: Shape) -> None:
        while waiting := self.ready.waiting(shape):
            slot = self.slots.last_idle(shape)
            if slot is None:
                return
            fair = max(1, waiting // max(1, self.slots.capacity(shape)))
            self.attempts.dispatch(
                slot, self.attempts.bundles.take(self.ready, shape, self.outcomes.now, most=fair)
            )
