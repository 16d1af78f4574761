"""The engine for callers without an event loop: it lives in a thread, and its tasks are known by `TaskRef`.

Rules:
1. One batch for each call: a graph is whole before its first task runs. Single tasks are batches of one, handed to the
   engine when all that they wait for have succeeded.
2. With a folder, each result is on the disk before anything that depends on it runs, and whoever starts again over the
   same folder finds it.
3. `close` leaves no process. The session that ``run_exp.remote`` shares is closed when the interpreter ends.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from governor import logs
from governor.messages import TaskRecord, TaskSpec
from governor.tasks import graph, values
from governor.tasks.api import SchedulerConfig
from governor.tasks.errors import GraphError, TaskFailed
from governor.tasks.story import BatchSpec
from governor.tasks.study import Study

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from types import TracebackType

    from governor.tasks.driver import Driver
    from governor.tasks.story import Attempt, AttemptEnded, AttemptStarted, BatchEnded

log = logs.get_logger()


class TaskRef:
    """A task that was handed to the engine. Safe to use from any thread."""

    def __init__(self, session: Session, name: str) -> None:
        self.name = name
        self.future: Future[TaskRecord] = Future()
        self.batch: int | None = None
        self.began: float | None = None
        self._session = session
        self._limit: float | None = None

    def __repr__(self) -> str:
        state = self.future.result().outcome if self.future.done() else "pending"
        return f"<TaskRef {self.name} {state}>"

    def outcome(self) -> Any:
        """Waits for its end: the result, or a TaskFailed."""
        return self._session.value_of(self.future.result())

    def elapsed(self) -> float | None:
        """Seconds that it has been running, or ran; None when it has not begun."""
        if self.future.done():
            return self.future.result().seconds
        return None if self.began is None else time.monotonic() - self.began

    def bound(self, seconds: float) -> None:
        """Ends it, as timed out, when it runs for more than `seconds`."""
        self._session.call(lambda: self._bound(seconds))

    def _bound(self, seconds: float) -> None:
        """In the engine's thread."""
        self._limit = seconds if self._limit is None else min(self._limit, seconds)
        if self.began is not None and not self.future.done():
            self._set_alarm()

    def started(self) -> None:
        """In the engine's thread."""
        self.began = time.monotonic()
        if self._limit is not None:
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self.began is not None and self._limit is not None:
            asyncio.get_running_loop().call_at(self.began + self._limit, self._late)

    def _late(self) -> None:
        if self.batch is not None and not self.future.done():
            self._session.cancel(self.batch, f"ran longer than its timeout of {self._limit:g} s")


class Session:
    """A driver and its engine in a thread of their own. A context manager."""

    _shared: ClassVar[Session | None] = None
    _sharing: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, config: SchedulerConfig, *, folder: Path | str | None = None) -> None:
        self._config = config
        self._study = None if folder is None else Study(Path(folder))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tasks.session", daemon=True)
        self._driver: Driver | None = None
        self._batches = count(1)

    @classmethod
    def shared(cls) -> Session:
        """The session of this process; opened when it is first needed."""
        with cls._sharing:
            if cls._shared is None:
                session = cls(SchedulerConfig())
                session.open()
                # Not `atexit`: by then no thread takes work any more. A test fails when this private name changes.
                threading._register_atexit(session.close)  # type: ignore[attr-defined]  # noqa: SLF001  # as said above
                cls._shared = session
            return cls._shared

    def open(self) -> None:
        """Raises ConductorError without Ray."""
        from governor.tasks.driver import Driver  # noqa: PLC0415  # heavy

        self._thread.start()
        folder = None if self._study is None else self._study.folder
        driver = Driver(self._config, folder=folder)
        try:
            self.wait(driver.open())
        except BaseException:
            self._end_thread()
            raise
        self._driver = driver

    def close(self) -> None:
        """Every runner is dead afterwards. Again: nothing."""
        driver, self._driver = self._driver, None
        if driver is not None:
            self.wait(driver.close(seconds=self._config.stop_timeout))
            self._end_thread()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- graphs ---------------------------------------------------------------------------------------------

    def run_graph(self, experiments: Sequence[Any], timeouts: Sequence[float]) -> dict[str, Any]:
        """Runs all of them, and gives results or TaskFailed by `exp_id`, in the order given."""
        specs = [
            TaskSpec(
                id=str(each.exp_id),
                call="",
                depends_on=tuple(map(str, getattr(each, "depends_on", None) or ())),
                timeout=timeout,
            )
            for each, timeout in zip(experiments, timeouts, strict=True)
        ]
        found = graph.faults(specs)
        if found:
            raise GraphError(found)
        done = [] if self._study is None else self._study.succeeded({spec.id for spec in specs})
        named = self._named(specs, experiments, {record.task for record in done})
        listener = _Graph(self._study)
        batch = BatchSpec(id=next(self._batches), tasks=tuple(named), done=tuple(done), folder="results")
        self.call(lambda: self._engine().submit(batch, listener))
        try:
            listener.ended.result()
        except BaseException:  # Ctrl-C, above all
            self.call(lambda: self._engine().cancel(batch.id, reason="its caller was interrupted"))
            raise
        records = {record.task: record for record in [*done, *listener.records]}
        return {str(each.exp_id): self.value_of(records[str(each.exp_id)]) for each in experiments}

    def submit_one(
        self,
        experiment: Any,
        *,
        name: str,
        timeout: float,
        retries: int,
        resources: Mapping[str, float],
        after: Sequence[TaskRef],
    ) -> TaskRef:
        """Runs one experiment once those that it comes after have succeeded."""
        reference = TaskRef(self, name)
        spec = TaskSpec(
            id=name,
            call=self._functions().name_call(experiment),
            timeout=timeout,
            retries=retries,
            resources=dict(resources),
        )
        self.call(lambda: self._when_ready(spec, reference, list(after)))
        return reference

    def value_of(self, record: TaskRecord) -> Any:
        """The value of a record, or a TaskFailed."""
        if record.outcome != "succeeded":
            return TaskFailed(record)
        if record.value_file is None or self._driver is None:
            return record.value
        return values.load(self._driver.folder / record.value_file)

    def cancel(self, batch: int, reason: str) -> None:
        """In the engine's thread: ends a batch of one as timed out."""
        self._engine().cancel(batch, reason=reason)

    # -- threads --------------------------------------------------------------------------------------------

    def call(self, function: Callable[[], Any]) -> Any:
        """Runs it in the engine's thread, and waits for it. Raises what it raises."""
        if threading.current_thread() is self._thread:
            return function()

        async def called() -> Any:
            return function()

        return self.wait(called())

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- inside ---------------------------------------------------------------------------------------------

    def _engine(self) -> Any:
        if self._driver is None:
            raise RuntimeError("the session is closed")
        return self._driver.engine

    def _functions(self) -> Any:
        if self._driver is None:
            raise RuntimeError("the session is closed")
        return self._driver.functions

    def _named(self, specs: Sequence[TaskSpec], experiments: Sequence[Any], done: set[str]) -> list[TaskSpec]:
        wanted = [each for spec, each in zip(specs, experiments, strict=True) if spec.id not in done]
        names = iter(self._functions().name_many(wanted))
        return [
            spec if spec.id in done else msgspec.structs.replace(spec, call=next(names)) for spec in specs
        ]

    def _when_ready(self, spec: TaskSpec, reference: TaskRef, after: list[TaskRef]) -> None:
        """In the engine's thread."""
        for other in after:
            if not other.future.done():
                other.future.add_done_callback(
                    lambda _: self._loop.call_soon_threadsafe(self._when_ready, spec, reference, after)
                )
                return
            record = other.future.result()
            if record.outcome != "succeeded":
                reference.future.set_result(_upstream(spec.id, record))
                return
        reference.batch = next(self._batches)
        batch = BatchSpec(id=reference.batch, tasks=(spec,), folder=f"results/{reference.batch}")
        self._engine().submit(batch, _One(reference))


def _upstream(task: str, record: TaskRecord) -> TaskRecord:
    root = record.cause or record.task
    return TaskRecord(
        task=task,
        run=0,
        outcome="upstream_failed",
        attempts=0,
        seconds=0.0,
        error=f'task "{root}" did not succeed',
        cause=root,
    )


class _Listener:
    """A `BatchListener` that logs what its task says."""

    def attempt_started(self, started: AttemptStarted, *, pid: int, node: str) -> None: ...

    def attempt_ended(self, ended: AttemptEnded) -> None: ...

    def batch_ended(self, ended: BatchEnded) -> None: ...

    def line(self, attempt: Attempt, run: int, level: str, text: str) -> None:
        log.info("task.log", task=attempt.task.id, run_id=run, level_of_task=level, text=text)


class _Graph(_Listener):
    def __init__(self, study: Study | None) -> None:
        self.records: list[TaskRecord] = []
        self.ended: Future[None] = Future()
        self._study = study

    def run_ended(self, record: TaskRecord, payload: bytes) -> None:
        del payload  # experiments have none
        self.records.append(record)
        if self._study is not None:
            self._study.enter(record)

    def batch_ended(self, ended: BatchEnded) -> None:
        del ended  # the records tell more
        self.ended.set_result(None)


class _One(_Listener):
    def __init__(self, reference: TaskRef) -> None:
        self._reference = reference

    def attempt_started(self, started: AttemptStarted, *, pid: int, node: str) -> None:
        del started, pid, node  # there is but one run
        self._reference.started()

    def run_ended(self, record: TaskRecord, payload: bytes) -> None:
        del payload  # experiments have none
        if record.outcome == "cancelled":
            record = msgspec.structs.replace(record, outcome="timed_out")
        self._reference.future.set_result(record)
