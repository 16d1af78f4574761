"""The batch listeners of a `Session`, in the engine's thread: one for a graph, one for a single task."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING

from governor import logs
from governor.tasks.agentlab.study import SYNC_SECONDS
from governor.tasks.ports import LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from governor.messages import TaskRecord
    from governor.tasks.agentlab.study import Study
    from governor.tasks.agentlab.task_ref import TaskRef
    from governor.tasks.scheduling.events import (
        Attempt,
        AttemptEnded,
        AttemptStarted,
        BatchEnded,
    )

log = logs.get_logger()


class _Listener:
    """A `BatchListener` that logs the lines of its task."""

    def attempt_started(self, started: AttemptStarted, *, pid: int, node: str) -> None: ...

    def attempt_ended(self, ended: AttemptEnded) -> None: ...

    def batch_ended(self, ended: BatchEnded) -> None: ...

    def line(self, attempt: Attempt, run: int, level: str, text: str) -> None:
        log_line = getattr(log, LEVELS.get(level, "info"))
        log_line("task.log", task=attempt.task.id, run_id=run, text=text)


class GraphListener(_Listener):
    """The listener of a graph.

    Args:
        study: where results are entered. awaited: the tasks that others depend on.
        cancel: ends the batch, if results cannot be stored.
    """

    def __init__(
        self, *, study: Study | None, awaited: Collection[str], cancel: Callable[[str], None]
    ) -> None:
        self.records: list[TaskRecord] = []
        self.ended: Future[None] = Future()
        """Has the OSError of a study that cannot be written."""
        self._study = study
        self._awaited = awaited
        self._cancel = cancel
        self._alarm: asyncio.TimerHandle | None = None
        self._error: OSError | None = None

    def run_ended(self, record: TaskRecord, payload: bytes) -> None:
        del payload  # experiments have none
        self.records.append(record)
        if self._study is None or self._error is not None:
            return
        try:
            self._study.enter(record)
            if record.outcome == "succeeded" and record.task in self._awaited:
                self._study.sync()
        except OSError as error:
            self._give_up(error)
            return
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(SYNC_SECONDS, self._sync)

    def batch_ended(self, ended: BatchEnded) -> None:
        del ended  # the records tell more
        self._sync()
        if self._error is not None:
            self.ended.set_exception(self._error)
        else:
            self.ended.set_result(None)

    def _sync(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._study is None or self._error is not None:
            return
        try:
            self._study.sync()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._error = error
        self._cancel(f"its result cannot be kept: {error}")


class SingleListener(_Listener):
    """The listener of a batch of one task with one run. `release` is called when it has ended."""

    def __init__(self, reference: TaskRef, *, release: Callable[[], None]) -> None:
        self._reference = reference
        self._release = release

    def attempt_started(self, started: AttemptStarted, *, pid: int, node: str) -> None:
        del pid, node  # there is nobody to tell
        self._reference.started(started.at)

    def attempt_ended(self, ended: AttemptEnded) -> None:
        del ended  # what matters is that it is not running
        self._reference.stopped()

    def run_ended(self, record: TaskRecord, payload: bytes) -> None:
        del payload  # experiments have none
        self._reference.end(record)
        self._release()
