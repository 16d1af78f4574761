"""The batch listeners of a graph and of a single task, in the engine's thread."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from governor.tasks.agentlab.study import SYNC_SECONDS
from governor.tasks.errors import TaskFailed
from governor.tasks.ports import BatchListener

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from governor.messages import TaskRecord
    from governor.tasks.agentlab.study import Study
    from governor.tasks.scheduling.events import AttemptEnded, AttemptStarted, BatchEnded


class GraphListener(BatchListener):
    """The listener of a graph.

    Args:
        study: where results are entered. awaited: the tasks that others depend on.
        cancel: ends the batch, if results cannot be stored.
    """

    def __init__(
        self, *, study: Study | None, awaited: Collection[str], cancel: Callable[[str], None]
    ) -> None:
        self.records: dict[str, TaskRecord] = {}
        """By task."""
        self.ended: Future[None] = Future()
        """Has the OSError of a study that cannot be written."""
        self._study = study
        self._awaited = awaited
        self._cancel = cancel
        self._is_sync_due = False
        self._error: OSError | None = None

    def run_ended(self, record: TaskRecord, payload: bytes) -> None:
        del payload  # experiments have none
        self.records[record.task] = record
        if self._study is None or self._error is not None:
            return
        with self._given_up_on_error():
            self._study.enter(record)
            if record.outcome == "succeeded" and record.task in self._awaited:
                self._study.sync()
            if not self._is_sync_due:
                self._is_sync_due = True
                asyncio.get_running_loop().call_later(SYNC_SECONDS, self._sync)

    def batch_ended(self, ended: BatchEnded) -> None:
        del ended  # the records tell more
        self._sync()
        if self._error is not None:
            self.ended.set_exception(self._error)
        else:
            self.ended.set_result(None)

    def _sync(self) -> None:
        self._is_sync_due = False
        if self._study is not None and self._error is None:
            with self._given_up_on_error():
                self._study.sync()

    @contextmanager
    def _given_up_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._error = error
            self._cancel(f"its result cannot be kept: {error}")


class Owner(Protocol):
    """The session that a task was handed to."""

    def value_of(self, record: TaskRecord) -> Any:
        """Its result. Raises TaskFailed."""

    def call(self, change: Callable[[], None]) -> None:
        """Runs it in the engine's thread."""

    def cancel(self, batch: int, reason: str) -> None: ...


class TaskRef(BatchListener):
    """What ``run_exp.remote`` gives: a task that was handed to the engine. It listens to the batch that is its task alone.

    Safe to use from any thread, where nothing else is said. `future` has its record when it has ended, and cannot be
    cancelled. `key` is its id as text: what depends on it gets its result under it.
    """

    def __init__(self, session: Owner, name: str, key: str) -> None:
        self.name = name
        self.key = key
        self.future: Future[TaskRecord] = Future()
        self.future.set_running_or_notify_cancel()
        self.batch: int | None = None
        self._began: float | None = None
        self._session = session
        self._limit: float | None = None
        self._is_late = False

    def __repr__(self) -> str:
        state = self.future.result().outcome if self.future.done() else "pending"
        return f"<TaskRef {self.name} {state}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} stays in the process that it was made in: send its outcome()")

    @property  # type: ignore[misc]  # isinstance reads it, nobody sets it
    def __class__(self) -> type:
        """The one class of Ray's references that ``ray.get`` asks for their value: it calls `get`."""
        from ray.experimental.compiled_dag_ref import CompiledDAGRef  # noqa: PLC0415  # heavy

        return CompiledDAGRef

    def get(self, timeout: float | None = None) -> Any:
        """What ``ray.get`` gives: the result. Raises TaskFailed; GetTimeoutError after `timeout` seconds."""
        try:
            record = self.future.result(timeout)
        except TimeoutError:
            from ray.exceptions import GetTimeoutError  # noqa: PLC0415  # heavy

            raise GetTimeoutError(f"{self!r} has not ended within {timeout} s") from None
        result = self._session.value_of(record)
        if isinstance(result, TaskFailed):
            raise result
        return result

    def outcome(self) -> Any:
        """Waits for its end: the result, or a TaskFailed."""
        return self._session.value_of(self.future.result())

    def elapsed(self) -> float | None:
        """Seconds that it has been running, or ran; None when it has not begun."""
        if self.future.done():
            record = self.future.result()
            return record.seconds if record.attempts else None
        began = self._began
        return None if began is None else time.monotonic() - began

    def bound(self, seconds: float) -> None:
        """Ends it, as timed out, when it runs for more than `seconds`."""
        if not self.future.done():
            self._session.call(lambda: self._bound(seconds))

    # -- in the engine's thread -----------------------------------------------------------------------------

    def attempt_started(self, started: AttemptStarted, *, pid: int, node: str) -> None:
        del pid, node  # there is nobody to tell
        self._began = started.at
        self._check_limit()

    def attempt_ended(self, ended: AttemptEnded) -> None:
        del ended  # what matters is that it is not running
        self._began = None

    def run_ended(self, record: TaskRecord, payload: bytes) -> None:
        del payload  # experiments have none
        self.end(record)

    def end(self, record: TaskRecord) -> None:
        if self._is_late and record.outcome == "cancelled":
            record = msgspec.structs.replace(record, outcome="timed_out")
        if not self.future.done():
            self.future.set_result(record)

    def _bound(self, seconds: float) -> None:
        self._limit = seconds if self._limit is None else min(self._limit, seconds)
        self._check_limit()

    def _check_limit(self) -> None:
        """Ends it if it is late; if it may come to be, looks again then."""
        if self._began is None or self._limit is None or self.batch is None or self.future.done():
            return
        due = self._began + self._limit
        if time.monotonic() < due:
            asyncio.get_running_loop().call_at(due, self._check_limit)
            return
        self._is_late = True
        self._session.cancel(self.batch, f"ran longer than its timeout of {self._limit:g} s")
