"""The task engine of one Ray driver: connects the pure core to runners and to the callers that submit batches.

Rules:
1. The core decides; here effects become calls and messages become events, one after the other.
2. A listener gets the events of its batch in their order, and `batch_ended` last.
3. One timer, set to the core's next alarm.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Literal

from governor import logs
from governor.tasks.errors import GraphError, QueueFull
from governor.tasks.protocol.wire import Begun, Loading, Over, Reported, StateUpdate, WorkItem
from governor.tasks.scheduling import graph
from governor.tasks.scheduling.core import Core
from governor.tasks.scheduling.events import (
    AttemptClosed,
    AttemptEnded,
    AttemptStarted,
    BatchEnded,
    BatchSubmitted,
    CancelAttempt,
    Cancelled,
    Dispatch,
    KillRunner,
    Released,
    Replaced,
    Resized,
    Revoke,
    Revoked,
    RunEnded,
    RunnerGone,
    RunnerReady,
    RunnerReported,
    SchedulerEffect,
    SchedulerEvent,
    Shape,
    StartRunner,
    Tick,
    shape_of,
)
from governor.tasks.scheduling.explain import explain
from governor.tasks.work import remove_partial_files, work_item

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from governor.tasks.api import BatchId
    from governor.tasks.ports import BatchListener, Capacity, RunnerPool
    from governor.tasks.scheduling.events import (
        Attempt,
        BatchSpec,
        SchedulingLimits,
        TaskChanged,
        TaskLimitsChanged,
        Waiting,
    )
    from governor.tasks.scheduling.runner_slots import RunnerSlot

log = logs.get_logger()


class Engine:
    """Runs batches of tasks, any number at a time.

    Args:
        folder: the run's folder, for results that are too large for a message.
        capacity: plain runners at work at once; None: the CPUs of the cluster. The runner of slot i gets
            ``models[i % len(models)]``.
        max_pending: runs without an outcome, of all batches.
        kills: logs the runners that are killed at work.
    """

    def __init__(
        self,
        *,
        runners: RunnerPool,
        cluster: Capacity,
        folder: Path,
        capacity: int | None = None,
        grace: float = 0.0,
        models: Sequence[Any] = (),
        max_pending: int | None = None,
        age: float = float("inf"),
        kills: logs.Repeated | None = None,
    ) -> None:
        self._runners = runners
        self._cluster = cluster
        self._folder = folder
        self._pauses: set[str] = set()
        self._capacity = capacity
        self._models = models
        self._max_pending = max_pending
        self._kills = kills
        self._core = Core(
            capacity={(): capacity or cluster.slots(())},
            grace=grace,
            age=age,
            runner_ids=runners.ids,
        )
        self._batches: dict[BatchId, tuple[BatchListener, Path]] = {}
        """Listener and folder of each, to the end of its effects."""
        self._inbox: deque[SchedulerEvent] = deque()
        self._handling = False
        self._alarm: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._closed = False
        runners.listener = self

    def warm(self) -> None:
        """Starts a runner for every plain slot."""
        for effect in self._core.warm(time.monotonic()):
            self._apply(effect)

    async def start(self) -> None:
        """Returns when every plain slot has its runner, or none can be started."""
        self.warm()
        await self.settle()

    @property
    def is_starting(self) -> bool:
        """Whether any runner is not ready yet."""
        return self._core.slots.is_starting

    async def settle(self) -> None:
        """Returns when no runner is starting."""
        while self._core.slots.is_starting:
            self._changed.clear()
            await self._changed.wait()

    def rest(self) -> None:
        """Gives the idle runners away; whoever submits a batch next waits for others."""
        slots, idle = self._core.slots, self._idle()
        slots.keep_warm = False
        for slot in idle:
            slots.mark_dying(slot)
        self._runners.release([slot.runner for slot in idle])

    def _idle(self) -> list[RunnerSlot]:
        return [slot for slot in self._core.slots.all() if slot.state == "idle"]

    async def close(self) -> None:
        """Cancels all batches, and waits for the exit of every runner. Call once. A pending `wait_for_runner` or `restart`
        raises RuntimeError.
        """
        self._closed = True
        self._core.close()
        self._changed.set()
        for batch in list(self._core.batches):
            self.cancel(batch, reason="the scheduler was stopped")
        while self._core.outcomes.has_followers:
            self._pauses.clear()
            self.pause("user", paused=False)
            await asyncio.sleep(0)
        await self._runners.close([slot.runner for slot in self._idle()])
        if self._alarm is not None:
            self._alarm.cancel()

    # -- batches --------------------------------------------------------------------------------------------

    def submit(
        self,
        batch: BatchSpec,
        listener: BatchListener,
        *,
        limits: SchedulingLimits | None = None,
        held: bool = False,
        is_checked: bool = False,
    ) -> None:
        """Accepts a batch, whole or not at all; `limits` is its dynamic time-out. `held`: it is not dispatched before
        `release`. `is_checked`: its graph is known to have no faults. Raises GraphError, QueueFull, or ValueError for an id that is
        active.
        """
        if batch.id in self._core.batches:
            raise ValueError(f"batch {batch.id!r} is still active")
        found = [] if is_checked else graph.faults(batch.tasks)
        if found:
            raise GraphError(found)
        if self._max_pending is not None:
            self._require_room(batch, self._max_pending)
        self.resize({shape_of(task) for task in batch.tasks if task.resources})
        self._batches[batch.id] = (listener, self._folder / batch.folder)
        self._handle(BatchSubmitted(time.monotonic(), batch, limits, held))

    def _require_room(self, batch: BatchSpec, most: int) -> None:
        done = len({(each.task, each.run) for each in batch.done})
        ended = sum(len(each.runs) for each in batch.ended.values())
        new = sum(task.repeat for task in batch.tasks) - done - ended
        pending = self._core.outcomes.pending
        if pending + new > most:
            raise QueueFull(pending=pending, new=new, limit=most)

    def release(self, batch: BatchId, *, error: str = "") -> None:
        """A held batch may begin; or, with an error, it fails."""
        self._handle(Released(time.monotonic(), batch, error))

    def cancel(self, batch: BatchId, *, reason: str, gentle: bool = False) -> None:
        """What has not ended of the batch ends as `cancelled`."""
        self._handle(Cancelled(time.monotonic(), batch, reason, gentle))

    def change_task(self, event: TaskChanged | TaskLimitsChanged) -> None:
        """A task that has ended stays so."""
        self._handle(event)

    def is_active(self, batch: BatchId | None = None) -> bool:
        """Whether it was submitted and has not ended; None: whether there is any such."""
        return bool(self._core.batches) if batch is None else batch in self._core.batches

    def pause(self, why: Literal["user", "full"], *, paused: bool) -> None:
        """Whether there is this reason to dispatch no further sub-task; those on runners go on, and what else waits keeps its place. While
        the listener is full, ends that follow from others wait, too.
        """
        (self._pauses.add if paused else self._pauses.discard)(why)
        self._core.is_paused, self._core.is_full = bool(self._pauses), "full" in self._pauses
        self._handle(Tick(time.monotonic()))

    def explain(self, batch: BatchId) -> list[Waiting]:
        """What every task that has not ended waits for. Raises KeyError for a batch that is not active."""
        return explain(self._core, batch)

    def resize(self, shapes: Collection[Shape]) -> None:
        """Asks the nodes again how many runners of these shapes they hold."""
        slots = {
            shape: self._capacity if not shape and self._capacity else self._cluster.slots(shape)
            for shape in shapes
        }
        if slots:
            set_unschedulable = {shape: self._cluster.why_never(shape) for shape in slots if not slots[shape]}
            self._handle(Resized(time.monotonic(), slots, set_unschedulable))

    def shapes(self) -> list[Shape]:
        """What runners have been asked for so far."""
        return self._core.slots.shapes()

    def plain_slots(self) -> dict[int, RunnerSlot]:
        """The plain runners by slot index, as they were reported last; to be read only. Never waits for a runner."""
        return self._core.slots.indexed()

    async def wait_for_runner(self, slot_index: int) -> None:
        """Returns when this slot has a runner that is not dying; one that has exited is replaced, also if no sub-task
        waits for it. Raises RuntimeError when the engine is closed, or none can be started.
        """
        slots = self._core.slots
        while (slot := slots.at_index(slot_index)) is None or slot.state == "dying":
            self.warm()
            if not (slots.is_starting or slots.is_dying):
                raise RuntimeError(f"no runner can be started for slot {slot_index}")
            await self._wait_for_change()

    async def restart(self, slot_index: int) -> None:
        """Replaces the runner of a slot; the new one is ready before the old one is killed. Raises KeyError without
        one, and RuntimeError when the engine is closed.
        """
        old = self._core.slots.at_index(slot_index)
        if old is None:
            raise KeyError(slot_index)
        self._handle(Replaced(time.monotonic(), slot_index))
        while self._core.slots.get(old.runner) is not None and (old.replace or old.state == "dying"):
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        """Returns when a runner is ready, or has exited."""
        if self._closed:
            raise RuntimeError("the engine is closed")
        self._changed.clear()
        await self._changed.wait()

    # -- Listener of the runners ----------------------------------------------------------------------------

    def runner_changed(self, event: RunnerReady | RunnerGone) -> None:
        self._handle(event)
        self._changed.set()

    def runner_reported(
        self,
        runner: int,
        messages: Sequence[Begun | Over | Loading | StateUpdate | Reported],
        now: float,
    ) -> None:
        reports: list[Any] = []  # types are compared: `isinstance` of a union would cost a tenth of a run
        for message in messages:
            is_aside = type(message) is StateUpdate or type(message) is Reported
            if is_aside or (type(message) is Over and message.traceback):
                self._on_aside(runner, message)
            if not is_aside:
                reports.append(message)
        self._handle(RunnerReported(now, runner, reports))

    def runner_revoked(self, runner: int, tickets: tuple[int, ...]) -> None:
        self._handle(Revoked(time.monotonic(), runner, tickets))

    def _on_aside(self, runner: int, message: Begun | Over | Loading | StateUpdate | Reported) -> None:
        """The state of the runner, reported numbers, or a traceback."""
        slot = self._core.slots.get(runner)
        if slot is None:
            return
        attempt = next((job.attempt for job in slot.jobs if job.attempt.ticket == message.ticket), None)
        if attempt is None:
            return
        if isinstance(message, StateUpdate):
            slot.user_state.update(message.state)
            return
        if attempt.batch not in self._batches:
            return
        listener = self._batches[attempt.batch][0]
        try:
            if isinstance(message, Reported):
                listener.reported(attempt, message.run, message.values)
                return
            if isinstance(message, Over):
                listener.traceback(attempt, message.run, message.traceback)
        except Exception:
            log.exception("engine.listener_failed", batch=attempt.batch)

    # -- events in, effects out -----------------------------------------------------------------------------

    def _handle(self, event: SchedulerEvent) -> None:
        """Handles an event. An effect may cause another event at once: they are handled one after the other."""
        self._inbox.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._inbox:
                for effect in self._core.on(self._inbox.popleft()):
                    self._apply(effect)
        finally:
            self._handling = False
            self._set_alarm()

    def _set_alarm(self) -> None:
        due = self._core.next_alarm()
        if self._alarm is not None:
            if due is not None and self._alarm.when() <= due:
                return  # too early is harmless: the tick does nothing and sets it again
            self._alarm.cancel()
        self._alarm = None if due is None else self._loop.call_at(due, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        self._handle(Tick(time.monotonic()))

    def _apply(self, effect: SchedulerEffect) -> None:  # noqa: C901  # one answer for each kind of effect
        """Performs an effect. An exception of a listener is logged, and the engine goes on."""
        try:
            match effect:
                case RunEnded(batch, record, payload):
                    self._batches[batch][0].run_ended(record, payload)
                case Dispatch():
                    self._dispatch(effect)
                case AttemptStarted(attempt, _, runner, _):
                    pid, node = self._runners.pid(runner), self._runners.node(runner)
                    self._batches[attempt.batch][0].attempt_started(effect, pid=pid, node=node)
                case AttemptEnded(attempt):
                    self._batches[attempt.batch][0].attempt_ended(effect)
                case AttemptClosed(attempt, runs):
                    for run in runs:
                        remove_partial_files(self._batches[attempt.batch][1], attempt.task.id, run)
                case BatchEnded(batch):
                    listener, _ = self._batches.pop(batch)
                    listener.batch_ended(effect)
                case StartRunner(runner, shape):
                    self._runners.start(runner, shape)
                case Revoke(runner):
                    self._runners.revoke(runner)
                case CancelAttempt(runner, ticket):
                    self._runners.cancel(runner, ticket)
                case KillRunner(runner, reason, is_idle):
                    self._log_kill(effect)
                    self._runners.kill(runner, reason, is_idle=is_idle)
        except Exception:
            log.exception("engine.effect_failed", effect=type(effect).__name__)

    def _log_kill(self, effect: KillRunner) -> None:
        if self._kills is not None and not effect.is_idle:
            pid, node = self._runners.pid(effect.runner), self._runners.node(effect.runner)
            self._kills.log(  # its task's end is the warning
                "info", "runner.killed", runner=effect.runner, pid=pid, node=node, reason=effect.reason
            )

    def _dispatch(self, effect: Dispatch) -> None:
        try:
            work_items = [self._work_item(attempt, effect.slot_index) for attempt in effect.attempts]
            self._runners.send(effect.runner, work_items)
        except Exception as error:
            log.exception("engine.dispatch_failed", runner=effect.runner)
            self._runners.kill(
                effect.runner, f"its work items cannot be sent: {type(error).__name__}: {error}"
            )

    def _work_item(self, attempt: Attempt, slot_index: int) -> WorkItem:
        batch = self._core.batches[attempt.batch]
        return work_item(attempt, batch, slot_index=slot_index, models=self._models)
