"""The interfaces of the engine: runners, nodes, listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from governor import logs

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Coroutine, Iterator, Sequence

    from governor.messages import ReportedSums, TaskRecord
    from governor.tasks.protocol.wire import WorkItem
    from governor.tasks.scheduling.events import (
        Attempt,
        AttemptEnded,
        AttemptStarted,
        BatchEnded,
        Shape,
    )

log = logs.get_logger()


class TrackTask(Protocol):
    """Starts an asyncio task and holds it; if it fails, its runner is ended."""

    def __call__(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...


class RunnerPool(Protocol):
    """The runners, as the engine uses them."""

    listener: Any

    @property
    def ids(self) -> Iterator[int]: ...

    def start(self, runner: int, shape: Shape) -> None: ...

    def send(self, runner: int, work_items: Sequence[WorkItem]) -> None: ...

    def revoke(self, runner: int) -> None: ...

    def cancel(self, runner: int, ticket: int) -> None: ...

    def kill(self, runner: int, reason: str, *, is_idle: bool = False) -> None: ...

    def release(self, idle: Collection[int]) -> None: ...

    def pid(self, runner: int) -> int: ...

    def node(self, runner: int) -> str: ...

    async def close(self, idle: Collection[int] = ()) -> None: ...


class Capacity(Protocol):
    """The nodes, as the engine uses them."""

    def slots(self, shape: Shape) -> int: ...

    def why_never(self, shape: Shape) -> str: ...


class BatchListener:
    """Receives the events of one batch, in the event loop, in order. Must not raise. Tracebacks are logged, and all other
    events ignored, unless a subclass has a use for them.
    """

    def attempt_started(self, started: AttemptStarted, *, pid: int, node: str) -> None:
        """A run of user code has begun, and has not ended yet."""

    def attempt_ended(self, ended: AttemptEnded) -> None:
        """A run did not succeed and will be retried."""

    def run_ended(self, record: TaskRecord, payload: bytes) -> None:
        """The outcome of a run."""

    def traceback(self, attempt: Attempt, run: int, text: str) -> None:
        """Of the exception that user code has raised."""
        log.error("task.traceback", task=attempt.task.id, run_id=run, text=text)

    def reported(self, attempt: Attempt, run: int, values: dict[str, ReportedSums]) -> None:
        """Numbers that user code has reported while it runs."""

    def batch_ended(self, ended: BatchEnded) -> None:
        """All runs have their outcome. Called once, last."""
