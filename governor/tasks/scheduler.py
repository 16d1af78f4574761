"""The task graph of one phase at work: the pure core between the runners and the governor.

Rules:
1. Decisions are the core's; here effects become calls and messages become events.
2. What the governor hears keeps its order: `TaskStarted` before `TaskEnded`, `PartEnded` last, and it is reported
   without one event waiting for the acknowledgement of the one before.
3. One alarm clock, set to the core's next deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from governor import logs
from governor.errors import ConductorError
from governor.messages import Log, PartEnded, TaskAttemptEnded, TaskEnded, TaskStarted
from governor.tasks import graph, values
from governor.tasks.core import Core
from governor.tasks.story import (
    AttemptEnded,
    AttemptStarted,
    Dispatch,
    Effect,
    Ended,
    GraphEnded,
    Importing,
    KillRunner,
    Result,
    RunEnded,
    Started,
    StartRunner,
    Stop,
    Tick,
    shape_of,
)
from governor.tasks.wire import Begun, Input, Line, Loading, Over, Work

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.conductors.conductor import Link
    from governor.messages import ConductorEvent, ConductorSpec, StartTasks, TaskRecord
    from governor.tasks.cluster import Cluster
    from governor.tasks.runners import Runners
    from governor.tasks.story import Attempt, Event, RunnerGone, RunnerReady
    from governor.tasks.wire import FromRunner

REPORTS_AT_ONCE: Final = 256
NAME_BYTES: Final = 100

log = logs.get_logger()


class Scheduler:
    """Runs one `StartTasks` from start to `PartEnded`. One at a time for each set of runners."""

    def __init__(
        self, *, command: StartTasks, spec: ConductorSpec, link: Link, cluster: Cluster, runners: Runners
    ) -> None:
        found = graph.faults(command.tasks)
        if found:
            raise ConductorError("the task graph has faults: " + "; ".join(fault.message for fault in found))
        self.phase = command.phase
        self._folder = Path(spec.run_folder)
        self._results = f"results/{_file_name(command.name)}"
        self._link = link
        self._runners = runners
        self._repeated = {task.id for task in command.tasks if task.repeat > 1}
        shapes = {shape_of(task) for task in command.tasks}
        slots = {shape: cluster.slots(shape) for shape in shapes}
        self._core = Core(
            tasks=command.tasks,
            done=command.done,
            slots=slots,
            unschedulable={shape: cluster.why_never(shape) for shape in shapes if not slots[shape]},
            runner_ids=runners.ids,
        )
        log.info(
            "tasks.begin",
            phase=command.name,
            tasks=len(command.tasks),
            done=len(command.done),
            at_once={_name(shape): count for shape, count in slots.items()},
        )
        self._attempts: dict[int, Attempt] = {}
        self._inbox: deque[Event] = deque()
        self._reports: deque[ConductorEvent] = deque()
        self._to_report = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Ends when `PartEnded` is in the journal."""
        self._runners.listener = self
        try:
            for runner, shape, ready in self._runners.warm():
                self._core.adopt(runner=runner, shape=shape, ready=ready)
            self._perform(self._core.begin(time.monotonic()))
            await self._report()
        finally:
            self._runners.listener = None
            if self._alarm is not None:
                self._alarm.cancel()

    def stop(self, reason: str) -> None:
        """Cancels all that has not ended; the end comes as `PartEnded` with end ``stopped``."""
        self._feed(Stop(time.monotonic(), reason))

    # -- Listener -------------------------------------------------------------------------------------------

    def runner_changed(self, event: RunnerReady | RunnerGone) -> None:
        self._feed(event)

    def runner_said(self, runner: int, message: FromRunner, now: float) -> None:
        match message:
            case Begun():
                pid, node = self._runners.pid(runner), self._runners.node(runner)
                self._feed(Started(runner, message.ticket, now, pid, node))
            case Over():
                self._over(runner, message, now)
            case Loading():
                self._feed(Importing(runner, message.ticket, now))
            case Line():
                attempt = self._attempts.get(message.ticket)
                if attempt is not None:
                    self._log(message.level, "task.log", attempt, text=message.text)

    def _over(self, runner: int, message: Over, now: float) -> None:
        result = None
        if not message.error:
            result = Result(value=message.value, value_file=message.value_file, metrics=message.metrics)
        attempt = self._attempts.pop(message.ticket, None)
        if message.traceback and attempt is not None:
            self._log("info", "task.traceback", attempt, text=message.traceback)
        self._feed(
            Ended(
                runner=runner,
                ticket=message.ticket,
                now=now,
                seconds=message.seconds,
                result=result,
                error=message.error,
            )
        )

    # -- events in, effects out -----------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        """An effect may at once lead to an event: they are taken one after the other."""
        self._inbox.append(event)
        if len(self._inbox) > 1:
            return
        while self._inbox:
            self._perform(self._core.on(self._inbox[0]))
            self._inbox.popleft()
        self._set_alarm()

    def _set_alarm(self) -> None:
        due = self._core.next_alarm()
        if self._alarm is not None:
            if due is not None and self._alarm.when() <= due:
                return  # too early is harmless: the tick finds nothing and sets it anew
            self._alarm.cancel()
        self._alarm = None if due is None else self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._feed(Tick(time.monotonic()))

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Dispatch():
                    self._attempts[effect.attempt.ticket] = effect.attempt
                    self._runners.send(effect.runner, self._work(effect))
                case StartRunner():
                    self._runners.start(effect.runner, effect.shape)
                case KillRunner():
                    self._runners.kill(effect.runner, effect.reason)
                case AttemptStarted(attempt, pid, node):
                    self._say(
                        TaskStarted(
                            phase=self.phase,
                            task=attempt.task.id,
                            run=attempt.run,
                            attempt=attempt.number,
                            pid=pid,
                            node=node,
                        )
                    )
                case AttemptEnded():
                    self._attempt_ended(effect)
                case RunEnded(record):
                    self._run_ended(record)
                case GraphEnded(end, failures, first_failure):
                    log.info("tasks.end", end=end, failures=failures, first_failure=first_failure)
                    self._say(
                        PartEnded(
                            phase=self.phase,
                            part="tasks",
                            end=end,
                            failures=failures,
                            first_failure=first_failure,
                        )
                    )
        self._set_alarm()

    def _work(self, effect: Dispatch) -> Work:
        attempt = effect.attempt
        task = attempt.task
        return Work(
            ticket=attempt.ticket,
            task=task.id,
            run=attempt.run,
            attempt=attempt.number,
            call=task.call,
            args=task.args,
            timeout=task.timeout,
            stem=self._stem(task.id, attempt.run),
            inputs={
                name: [Input(value=record.value, file=record.value_file) for record in records]
                for name, records in effect.inputs.items()
            },
            repeated=tuple(name for name in effect.inputs if name in self._repeated),
        )

    def _attempt_ended(self, effect: AttemptEnded) -> None:
        attempt = effect.attempt
        self._attempts.pop(attempt.ticket, None)
        self._sweep(attempt.task.id, attempt.run)
        self._say(
            TaskAttemptEnded(
                phase=self.phase,
                task=attempt.task.id,
                run=attempt.run,
                attempt=attempt.number,
                outcome=effect.outcome,
                error=effect.error,
                seconds=effect.seconds,
            )
        )

    def _run_ended(self, record: TaskRecord) -> None:
        if record.outcome in ("timed_out", "crashed", "cancelled") and record.attempts:
            self._sweep(record.task, record.run)
        self._say(TaskEnded(phase=self.phase, record=record))

    def _stem(self, task: str, run: int) -> str:
        return f"{self._results}/{_file_name(task)}-{run}"

    def _sweep(self, task: str, run: int) -> None:
        """Removes what a killed attempt had half written."""
        stem = self._folder / self._stem(task, run)
        for suffix in (".json", ".npy", ".pkl", ".payload"):
            values.temporary(stem.with_name(stem.name + suffix)).unlink(missing_ok=True)

    def _log(self, level: str, event: str, attempt: Attempt, *, text: str) -> None:
        data = {"task": attempt.task.id, "run_id": attempt.run, "attempt": attempt.number, "text": text}
        self._say(Log(level=level, event=event, data=data))

    # -- reports --------------------------------------------------------------------------------------------

    def _say(self, event: ConductorEvent) -> None:
        self._reports.append(event)
        self._to_report.set()

    async def _report(self) -> None:
        while True:
            await self._to_report.wait()
            batch = [self._reports.popleft() for _ in range(min(len(self._reports), REPORTS_AT_ONCE))]
            if not self._reports:
                self._to_report.clear()
            await asyncio.gather(*(self._link.report(event) for event in batch))
            if any(isinstance(event, PartEnded) for event in batch):
                return


def _name(shape: tuple[tuple[str, float], ...]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in shape) or "plain"


def _file_name(text: str) -> str:
    """A file name for any id; long ones are cut and told apart by a number made of all of it."""
    name = quote(text, safe=" ")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) <= NAME_BYTES:
        return name
    import hashlib  # noqa: PLC0415  # rare

    return f"{name[:NAME_BYTES]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
