"""The engine for callers without an event loop: it runs in a thread, and `TaskRef` represents its tasks.

Rules:
1. One batch for each call: a graph is complete before its first task runs. Single tasks are batches of one, submitted to
   the engine when all their dependencies have succeeded.
2. With a folder, each result is on the disk before a task that depends on it runs, and a new start over the same folder
   finds it.
3. `close` leaves no waiting caller, and no process but idle runners that are kept for the next driver; nor does an interrupted
   `open`. The session that is shared by ``run_exp.remote`` and by graphs is closed when the interpreter ends. Where it has
   nothing to do, it has no runners.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
from concurrent.futures import wait as wait_for
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias

import msgspec

from governor import clock, logs
from governor.errors import ConductorError
from governor.messages import TaskRecord, TaskSpec
from governor.tasks.agentlab.listeners import GraphListener, TaskRef
from governor.tasks.agentlab.loop_thread import LoopThread
from governor.tasks.agentlab.study import Study
from governor.tasks.api import SchedulerConfig
from governor.tasks.cluster.joining import worker_id
from governor.tasks.errors import TaskFailed
from governor.tasks.protocol import values
from governor.tasks.scheduling.batch import upstream_failed
from governor.tasks.scheduling.events import BatchSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from governor.tasks.driver import Driver
    from governor.tasks.pickle_packs import PackBuilder

CLOSED: Final = "its session was closed"
SETTLE_SECONDS: Final = 1.0
RELEASE_SECONDS: Final = 0.05
"""Between two calls into Ray's thread to release what nobody will fetch again."""
REST_SECONDS: Final = 1.0
"""Without a task of `run_exp.remote`; then its runners are any caller's."""
Submitted: TypeAlias = "tuple[TaskSpec, TaskRef, Sequence[TaskRef | Future[TaskRecord]], PackBuilder]"

log = logs.get_logger()


class GraphSession(LoopThread):
    """A driver and its engine in a thread of their own. A context manager; may be opened once."""

    _batches: ClassVar[Iterator[int]] = count(1)
    """Of all sessions: a file of one is never taken for that of another."""
    _shared: ClassVar[GraphSession | None] = None
    _sharing: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, config: SchedulerConfig, *, folder: Path | str | None = None) -> None:
        super().__init__("tasks.session")
        self._config = config
        self._study = None if folder is None else Study(Path(folder))
        self._held = ExitStack()
        self._driver: Driver | None = None
        self._connection = ""
        self._import_path: list[str] = []
        self._graphs: set[int] = set()
        """The batches of those that are at work."""
        self._process = os.getpid()
        self._released: list[str] = []
        self._releasing: asyncio.Task[None] | None = None
        self._references: set[TaskRef] = set()  # those that have not ended
        self._submitting = threading.Lock()
        self._submitted: list[Submitted] = []
        """Tasks of `submit_one` that the engine's thread has not taken yet; `_classes` are those of the script."""
        self._classes: dict[type, tuple[str, bytes]] = {}
        self._resting: asyncio.TimerHandle | None = None
        self._storing: set[asyncio.Task[None]] = set()

    @classmethod
    def shared(cls) -> GraphSession:
        """The session of this process; opened when it is first needed, and anew when its Ray was shut down or ``sys.path`` was
        changed since.
        """
        with cls._sharing:
            old = cls._shared
            if old is not None:
                if old._is_connected() and (old._fits() or not old._is_unused()):  # noqa: SLF001  # its own class
                    return old
                cls._shared = None
                old.close()
            session = cls(SchedulerConfig())
            session.open()
            # Not `atexit`: by then no thread takes work any more. A test fails when this private name changes.
            threading._register_atexit(session.close)  # type: ignore[attr-defined]  # noqa: SLF001  # as said above
            cls._shared = session
            return session

    @classmethod
    @contextmanager
    def of_graph(cls, config: SchedulerConfig | None, folder: Path | str | None) -> Iterator[GraphSession]:
        """For one graph: the shared one, if Ray is initialized and nothing speaks for one of its own. Raises as `open`."""
        if folder is None and config in (None, SchedulerConfig()) and worker_id():
            session = cls.shared()
            if session._fits():  # noqa: SLF001  # its own class
                yield session
                return
        with cls(config or SchedulerConfig(), folder=folder) as session:
            yield session

    def open(self) -> None:
        """Raises ConductorError without Ray; TryAgain while somebody else works in the folder, OSError without one."""
        from governor.tasks.driver import Driver  # noqa: PLC0415  # heavy

        with ExitStack() as stack:
            folder = None if self._study is None else stack.enter_context(self._study).folder
            self._thread.start()
            stack.callback(self._end_references)
            stack.callback(self._end_thread)
            self._driver = self.wait(Driver.open(self._config, folder=folder, wait=False))
            self._connection, self._import_path = worker_id(), list(sys.path)
            self._held = stack.pop_all()

    def close(self) -> None:
        """No runner is at work afterwards, interrupted once or not. Again: nothing."""
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
                self.call(self._end_references)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- graphs ---------------------------------------------------------------------------------------------

    def run_graph(self, experiments: Sequence[Any], specs: Sequence[TaskSpec]) -> dict[Any, Any]:
        """Runs experiments, with their specs, and gives results or TaskFailed by
        `exp_id`, in the order given. Raises TypeError before anything runs, and OSError when results cannot be kept.
        """
        done = [] if self._study is None else self._study.succeeded({spec.id for spec in specs})
        kept = {record.task for record in done}
        wanted = {spec.id: each for spec, each in zip(specs, experiments, strict=True) if spec.id not in kept}
        labels = [f'experiment "{name}"' for name in wanted]
        driver = self._opened()
        number = next(self._batches)
        stored = "results" if self._study is not None else f"results/{number}"
        names: list[str] = []
        try:
            self._in_loop(driver.engine.warm)
            names = driver.pickle_store.name_many([*wanted.values()], labels)
            calls = dict(zip(wanted, names, strict=True))
            named = [msgspec.structs.replace(spec, call=calls.get(spec.id, "")) for spec in specs]
            batch = BatchSpec(
                id=number, tasks=tuple(named), done=tuple(done), folder=stored, keeps_tuples=True
            )
            awaited = {name for spec in specs for name in spec.depends_on}
            listener = GraphListener(study=self._study, awaited=awaited, cancel=partial(self.cancel, number))
            self.call(partial(self._begin_graph, number, batch, listener))
            clock.result_of(listener.ended)
            if driver.engine.is_starting:
                self.wait(self._settle())
            driver.show_output()
            listener.records.update((record.task, record) for record in done)
            ended = map(listener.records.__getitem__, (spec.id for spec in specs))
            return {
                each.exp_id: self.value_of(record) for each, record in zip(experiments, ended, strict=True)
            }
        except BaseException:  # an interrupt, or what cannot be sent
            if self.call(lambda: driver.engine.is_active(number)):
                self.call(partial(self.cancel, number, "it was interrupted"))
                wait_for([listener.ended])
            raise
        finally:
            self.call(partial(self._end_graph, number, names))
            if self._study is None:
                shutil.rmtree(driver.folder / stored, ignore_errors=True)

    def _begin_graph(self, number: int, batch: BatchSpec, listener: GraphListener) -> None:
        self._graphs.add(number)
        self._opened().engine.submit(batch, listener, is_checked=True)

    def _end_graph(self, number: int, names: Collection[str]) -> None:
        self._graphs.discard(number)
        if self is GraphSession._shared:  # else it is closed next
            self._release(names)
            self._rest()

    async def _settle(self) -> None:
        """Waits a moment for runners that are still starting: the next call finds them warm."""
        if self._config.idle_timeout > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._opened().engine.settle()

    def submit_one(
        self,
        experiment: Any,
        *,
        name: str,
        timeout: float,
        retries: int,
        resources: Mapping[str, float],
        after: Sequence[TaskRef | Future[TaskRecord]],
    ) -> TaskRef:
        """Runs one experiment, with their results, once those that it comes after have succeeded. Raises TypeError."""
        reference = TaskRef(self, name, str(experiment.exp_id))
        pack = self._opened().pickle_store.new_packs(self._classes)
        pack.add_object(experiment, f'experiment "{name}"')  # runs code of the user: not under the lock
        spec = TaskSpec(id=name, call="", timeout=timeout, retries=retries, resources=dict(resources))
        with self._submitting:
            self._opened()  # `close` ends what is here before
            if not self._submitted:
                self._in_loop(self._begin_submitted)
            self._submitted.append((spec, reference, after, pack))
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

    # -- inside ---------------------------------------------------------------------------------------------

    def _opened(self) -> Driver:
        if self._driver is None:
            raise RuntimeError("the session is closed")
        return self._driver

    def _is_connected(self) -> bool:
        """Whether its Ray is still the one of this process. Raises RuntimeError in a fork."""
        if self._process != os.getpid():
            raise RuntimeError("this process was forked from one that uses Ray: spawn it instead")
        return self._driver is not None and self._connection == worker_id()

    def _is_unused(self) -> bool:
        return not (self._graphs or self._references or self._submitted)

    def _fits(self) -> bool:
        """Whether runners of it find the modules that the script finds now."""
        return self._import_path == sys.path

    # -- in the engine's thread -----------------------------------------------------------------------------

    def _begin_submitted(self) -> None:
        with self._submitting:
            submitted, self._submitted, self._classes = self._submitted, [], {}
        self._references.update(reference for _, reference, *_ in submitted)
        if self._driver is None or not submitted:
            return  # `close` ends them
        task = self._loop.create_task(self._store_and_begin(self._driver, submitted), name="tasks.submit")
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def _store_and_begin(self, driver: Driver, submitted: list[Submitted]) -> None:
        """In one call into Ray's thread; one by one when it fails, for the sake of those that it is not about."""
        packs = [pack for *_, pack in submitted]
        try:
            calls = await driver.cluster.call(partial(driver.pickle_store.store_packs, packs))
        except Exception as error:  # noqa: BLE001  # whatever Ray raises: it is lost, or one is too large for it
            if len(submitted) > 1 and not isinstance(error, ConductorError):
                for each in submitted:
                    await self._store_and_begin(driver, [each])
                return
            reason = f"it cannot be sent: {type(error).__name__}: {error}"
            for spec, reference, *_ in submitted:
                self._references.discard(reference)
                reference.end(TaskRecord(task=spec.id, run=0, outcome="failed", error=reason))
            self._rest_later()
            return
        for call, (spec, reference, after, _) in zip(calls, submitted, strict=True):
            self._when_ready(msgspec.structs.replace(spec, call=call), reference, after)

    def _rest_later(self) -> None:
        if self._is_unused() and self._resting is None and self._driver is not None:
            self._resting = self._loop.call_later(REST_SECONDS, self._rest)

    def _rest(self) -> None:
        """At once: its idle runners are any caller's."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if self._is_unused() and self._driver is not None:
            self._driver.engine.rest()
            if self._driver.engine.is_starting:
                self._rest_later()

    def _when_ready(
        self, spec: TaskSpec, reference: TaskRef, after: Sequence[TaskRef | Future[TaskRecord]]
    ) -> None:
        """Hands it to the engine once all that it comes after has succeeded; the first that did not ends it."""

        def forget(_: Future[TaskRecord]) -> None:
            self._references.discard(reference)
            self._release([spec.call])
            self._rest_later()

        reference.future.add_done_callback(forget)
        needs = [each for each in after if isinstance(each, TaskRef)]
        left = {each.future if isinstance(each, TaskRef) else each for each in after}

        def look(other: Future[TaskRecord]) -> None:
            left.discard(other)
            record = other.result()
            if reference.future.done():
                return
            if record.outcome != "succeeded":
                reference.end(upstream_failed(spec.id, record))
            elif not left:
                self._submit(spec, reference, needs)

        if not left:
            self._submit(spec, reference, needs)
        for other in list(left):
            self._on_end(other, partial(look, other))

    def _submit(self, spec: TaskSpec, reference: TaskRef, needs: Sequence[TaskRef]) -> None:
        """What it needs stands in its batch as done: that is how it gets the results."""
        if self._driver is None:
            reference.end(TaskRecord(task=spec.id, run=0, outcome="cancelled", error=CLOSED))
            return
        done = {need.key: need.future.result() for need in needs if need.key != spec.id}
        reference.batch = next(self._batches)
        needed = [TaskSpec(id=key, call="") for key in done]
        batch = BatchSpec(
            id=reference.batch,
            tasks=(*needed, msgspec.structs.replace(spec, depends_on=tuple(done))),
            done=tuple(msgspec.structs.replace(record, task=key) for key, record in done.items()),
            folder=f"results/{reference.batch}",
            keeps_tuples=True,
        )
        try:
            self._driver.engine.submit(batch, reference)
        except Exception as error:  # noqa: BLE001  # too many wait, or whatever else the engine refuses it for
            reason = f"{type(error).__name__}: {error}"
            reference.end(TaskRecord(task=spec.id, run=0, outcome="failed", error=reason))

    def _on_end(self, other: Future[TaskRecord], function: Callable[[], None]) -> None:
        other.add_done_callback(lambda _: self._in_loop(function))

    def _end_references(self) -> None:
        with self._submitting:
            submitted, self._submitted = self._submitted, []
        for reference in [*self._references, *(reference for _, reference, *_ in submitted)]:
            reference.end(TaskRecord(task=reference.name, run=0, outcome="cancelled", error=CLOSED))

    def _release(self, names: Collection[str]) -> None:
        """Nobody will fetch these again."""
        self._released += names
        if self._releasing is None and self._driver is not None:
            self._releasing = self._loop.create_task(self._tell_released(self._driver), name="tasks.release")

    async def _tell_released(self, driver: Driver) -> None:
        """All that were released meanwhile in one call into Ray's thread."""
        try:
            await asyncio.sleep(RELEASE_SECONDS)
            while self._released and self._driver is not None:
                names, self._released = self._released, []
                await driver.cluster.call(partial(driver.pickle_store.release_names, names))
        except Exception as error:  # noqa: BLE001  # Ray raises many types; what stays goes when the driver closes
            log.debug("tasks.release_failed", reason=f"{type(error).__name__}: {error}")
        finally:
            self._releasing = None
