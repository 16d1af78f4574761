"""The engine for callers without an event loop: it lives in a thread, and its tasks are known by `TaskRef`.

Rules:
1. One batch for each call: a graph is whole before its first task runs. Single tasks are batches of one, handed to the
   engine when all that they wait for have succeeded.
2. With a folder, each result is on the disk before anything that depends on it runs, and whoever starts again over the
   same folder finds it.
3. `close` leaves no process, nor does an interrupted `open`. The session that ``run_exp.remote`` shares is closed when
   the interpreter ends.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import msgspec

from governor import logs
from governor.errors import ConductorError
from governor.messages import TaskRecord, TaskSpec
from governor.tasks.agentlab import experiments as exp
from governor.tasks.agentlab.listeners import GraphListener, SingleListener
from governor.tasks.agentlab.study import Study
from governor.tasks.agentlab.task_ref import TaskRef
from governor.tasks.api import SchedulerConfig
from governor.tasks.errors import TaskFailed
from governor.tasks.exchange import values
from governor.tasks.planning.story import BatchSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
    from types import TracebackType

    from governor.tasks.driver import Driver

T = TypeVar("T")

log = logs.get_logger()


class Session:
    """A driver and its engine in a thread of their own. A context manager; may be opened once."""

    _shared: ClassVar[Session | None] = None
    _sharing: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, config: SchedulerConfig, *, folder: Path | str | None = None) -> None:
        self._config = config
        self._study = None if folder is None else Study(Path(folder))
        self._held = ExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tasks.session", daemon=True)
        self._driver: Driver | None = None
        self._connection = ""
        self._process = os.getpid()
        self._batches = count(1)
        self._released: list[str] = []
        self._releasing: asyncio.Task[None] | None = None
        self._unsubmitted: set[TaskRef] = set()

    @classmethod
    def shared(cls) -> Session:
        """The session of this process; opened when it is first needed, and anew when its Ray was shut down since."""
        with cls._sharing:
            old = cls._shared
            if old is not None:
                if old._is_connected():  # noqa: SLF001  # its own class
                    return old
                cls._shared = None
                old.close()
            session = cls(SchedulerConfig())
            session.open()
            # Not `atexit`: by then no thread takes work any more. A test fails when this private name changes.
            threading._register_atexit(session.close)  # type: ignore[attr-defined]  # noqa: SLF001  # as said above
            cls._shared = session
            return session

    def open(self) -> None:
        """Raises ConductorError without Ray; TryAgain while somebody else works in the folder, OSError without one."""
        from governor.tasks.driver import Driver  # noqa: PLC0415  # heavy

        with ExitStack() as stack:
            folder = None if self._study is None else stack.enter_context(self._study).folder
            self._thread.start()
            stack.callback(self._end_thread)
            driver = Driver(self._config, folder=folder)
            self.wait(driver.open())
            self._driver = driver
            self._connection = _connection_of_ray()
            self._held = stack.pop_all()

    def close(self) -> None:
        """Every runner is dead afterwards, interrupted once or not. Again: nothing."""
        driver, self._driver = self._driver, None
        if driver is None or self._process != os.getpid():
            return
        with self._held:
            try:
                self.wait(driver.close(seconds=self._config.stop_timeout))
            except ConductorError as error:
                log.warning("session.ray_lost", reason=str(error))
            except KeyboardInterrupt:
                self.wait(driver.close(seconds=self._config.stop_timeout))
                raise
            finally:
                self.call(self._end_unsubmitted)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- graphs ---------------------------------------------------------------------------------------------

    def run_graph(self, experiments: Sequence[Any], specs: Sequence[TaskSpec]) -> dict[Any, Any]:
        """Runs experiments, of which `experiments.specs_of` has made the specs, and gives results or TaskFailed by
        `exp_id`, in the order given. Raises TypeError before anything runs, and OSError when results cannot be kept.
        """
        done = [] if self._study is None else self._study.succeeded({spec.id for spec in specs})
        named = self._named(specs, experiments, {record.task for record in done})
        number = next(self._batches)
        batch = BatchSpec(id=number, tasks=tuple(named), done=tuple(done))
        cancel = partial(self.cancel, number)
        listener = GraphListener(
            study=self._study,
            awaited={name for spec in specs for name in spec.depends_on},
            cancel=cancel,
        )
        self.call(lambda: self._opened().engine.submit(batch, listener))
        listener.ended.result()  # whoever is interrupted here closes the session, and that cancels it
        self.call(lambda: self._release([spec.call for spec in named if spec.call]))
        records = {record.task: record for record in [*done, *listener.records]}
        return {each.exp_id: self.value_of(records[str(each.exp_id)]) for each in experiments}

    def submit_one(
        self,
        experiment: Any,
        *,
        name: str,
        timeout: float,
        retries: int,
        resources: Mapping[str, float],
        after: Sequence[Future[TaskRecord]],
    ) -> TaskRef:
        """Runs one experiment once those that it comes after have succeeded. Raises TypeError."""
        reference = TaskRef(self, name)
        (call,) = self._opened().functions.name_many([experiment], [exp.label(name)])
        spec = TaskSpec(id=name, call=call, timeout=timeout, retries=retries, resources=dict(resources))
        self.call(lambda: self._when_ready(spec, reference, list(after)))
        return reference

    def value_of(self, record: TaskRecord) -> Any:
        """The value of a record, or a TaskFailed, also when it cannot be read here. Raises RuntimeError when it lies in
        a file and the session is closed.
        """
        if record.outcome != "succeeded":
            return TaskFailed(record)
        if record.value_file is None:
            return record.value
        path = self._opened().folder / record.value_file
        try:
            return values.load(path)
        except Exception as error:  # noqa: BLE001  # to unpickle runs code of the value's class
            why = f"its result cannot be read here: {type(error).__name__}: {error}"
            return TaskFailed(msgspec.structs.replace(record, outcome="failed", error=why))

    def cancel(self, batch: int, reason: str) -> None:
        """In the engine's thread: ends a batch; one that has ended stays so. `close` cancels all by itself."""
        if self._driver is not None:
            self._driver.engine.cancel(batch, reason=reason)

    # -- threads --------------------------------------------------------------------------------------------

    def call(self, function: Callable[[], T]) -> T:
        """Runs it in the engine's thread, and waits for it. Raises what it raises."""
        if threading.current_thread() is self._thread:
            return function()

        async def called() -> T:
            return function()

        return self.wait(called())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it in the engine's thread. Whoever is interrupted has seen it cancelled, to its end."""
        ended: Future[T] = Future()
        begun: list[asyncio.Task[T]] = []

        def settle(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                ended.set_exception(asyncio.CancelledError())
            elif (error := task.exception()) is not None:
                ended.set_exception(error)
            else:
                ended.set_result(task.result())

        def begin() -> None:
            begun.append(self._loop.create_task(work))
            begun[0].add_done_callback(settle)

        def stop() -> None:
            begun[0].cancel()

        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:
            work.close()
            raise RuntimeError("the session is closed") from None
        try:
            return ended.result()
        except BaseException:
            if not ended.done():
                self._loop.call_soon_threadsafe(stop)
                wait_for([ended])
            raise

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- inside ---------------------------------------------------------------------------------------------

    def _opened(self) -> Driver:
        if self._driver is None:
            raise RuntimeError("the session is closed")
        return self._driver

    def _is_connected(self) -> bool:
        """Whether its Ray is still the one of this process. Raises RuntimeError in a fork."""
        if self._process != os.getpid():
            raise RuntimeError("this process was forked from one that uses Ray: spawn it instead")
        return self._driver is not None and self._connection == _connection_of_ray()

    def _named(self, specs: Sequence[TaskSpec], experiments: Sequence[Any], done: set[str]) -> list[TaskSpec]:
        wanted = [(spec, each) for spec, each in zip(specs, experiments, strict=True) if spec.id not in done]
        names = iter(
            self._opened().functions.name_many(
                [each for _, each in wanted], [exp.label(spec.id) for spec, _ in wanted]
            )
        )
        return [
            spec if spec.id in done else msgspec.structs.replace(spec, call=next(names)) for spec in specs
        ]

    # -- in the engine's thread -----------------------------------------------------------------------------

    def _when_ready(
        self, spec: TaskSpec, reference: TaskRef, after: Sequence[Future[TaskRecord]], seen: int = 0
    ) -> None:
        """Waits for one after the other; the first `seen` have succeeded."""
        for place, other in enumerate(islice(after, seen, None), start=seen):
            if not other.done():
                self._unsubmitted.add(reference)
                self._on_end(other, partial(self._when_ready, spec, reference, after, place))
                return
            record = other.result()
            if record.outcome != "succeeded":
                self._unsubmitted.discard(reference)
                reference.end(exp.upstream_failed(spec.id, record))
                self._release([spec.call])
                return
        self._unsubmitted.discard(reference)
        if self._driver is None:  # it closes
            reference.end(exp.cancelled(spec.id, "its session was closed"))
            return
        reference.batch = next(self._batches)
        batch = BatchSpec(id=reference.batch, tasks=(spec,), folder=f"results/{reference.batch}")
        listener = SingleListener(reference, release=lambda: self._release([spec.call]))
        self._driver.engine.submit(batch, listener)

    def _on_end(self, other: Future[TaskRecord], function: Callable[[], None]) -> None:
        def called(_: Future[TaskRecord]) -> None:
            with suppress(RuntimeError):  # the loop is closed: `close` has ended what waited
                self._loop.call_soon_threadsafe(function)

        other.add_done_callback(called)

    def _end_unsubmitted(self) -> None:
        for reference in list(self._unsubmitted):
            reference.end(exp.cancelled(reference.name, "its session was closed"))

    def _release(self, names: Collection[str]) -> None:
        """Nobody will fetch these again."""
        self._released += names
        if self._releasing is None and self._driver is not None:
            self._releasing = self._loop.create_task(self._tell_released(self._driver), name="tasks.release")

    async def _tell_released(self, driver: Driver) -> None:
        """All that were released meanwhile in one call into Ray's thread."""
        try:
            while self._released and self._driver is not None and driver.cluster is not None:
                names, self._released = self._released, []
                await driver.cluster.call(partial(driver.functions.release_names, names))
        except Exception as error:  # noqa: BLE001  # Ray raises many types; what stays goes when the driver closes
            log.debug("tasks.unreleased", reason=f"{type(error).__name__}: {error}")
        finally:
            self._releasing = None


def _connection_of_ray() -> str:
    """Tells one connection of this process to Ray from the next; "" without one."""
    import ray  # noqa: PLC0415  # heavy

    return str(ray.get_runtime_context().get_worker_id()) if ray.is_initialized() else ""
