"""Submissions of batches to the engine, with the pickles that their tasks need.

Rules:
1. Pickles are stored before the submission begins, and deleted when it has ended with all its retries.
2. Calls into Ray are made in Ray's thread: neither a large argument nor an unresponsive store blocks the event loop.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from governor import logs
from governor.messages import TaskRecord
from governor.tasks.api import Task, sort_batch_id
from governor.tasks.scheduling.events import BatchSpec
from governor.tasks.trinity.handover import specs_of
from governor.tasks.trinity.views import TaskWrapper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.tasks.api import SchedulerConfig
    from governor.tasks.driver import Driver
    from governor.tasks.pickle_store import NamedTasks
    from governor.tasks.trinity.views import BatchView

log = logs.get_logger()


class Submissions:
    """The submissions of one driver, while it is open."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._numbers = count(1)
        self._over: dict[int, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def submit(
        self,
        tasks: Sequence[Task],
        view: BatchView,
        config: SchedulerConfig,
        *,
        pin: int | None = None,
        first_run: int = 0,
    ) -> list[TaskWrapper]:
        """Submits tasks of a batch, all or none. They begin when their pickles are stored, and fail if they can't be.

        `pin`: the number of the only runner that may execute them; None: any may. Their runs are numbered from `first_run`.

        Raises:
            RuntimeError: this is another thread than that of the event loop.
            TypeError: no `Task`; a callable or an argument that cannot be sent to a runner; or as `specs_of`.
            ValueError: as `specs_of` and `BatchView.begin`. GraphError, QueueFull: as `Engine.submit`.
        """
        self._require_its_loop()
        for task in tasks:
            _require_task(task)
        named = self.driver.pickle_store.name_tasks(
            [task.call for task in tasks], [task.args for task in tasks]
        )
        specs = specs_of(tasks, view.scheduled, config=config, named=named, first_run=first_run)
        earlier = [
            TaskRecord(task=spec.id, run=run, outcome="succeeded")
            for spec in specs
            for run in range(first_run)
        ]
        stored = [] if view.stored is None else view.stored.succeeded({spec.id for spec in specs})
        number = next(self._numbers)
        batch = BatchSpec(
            id=number,
            name=view.batch_id,
            tasks=tuple(specs),
            split=view.split,
            rank=sort_batch_id(view.batch_id),
            done=(*earlier, *stored),
            pin=pin,
            budget=config.max_timeout * (config.max_retry_times + 1),
            payload_inline=view.stored is None,
            folder=_folder_of(number) if view.stored is None else view.stored.folder,
        )
        wrappers = [
            TaskWrapper(
                task, view.batch_id, task_id=spec.id, total_runs=task.repeat_times, first_run=first_run
            )
            for task, spec in zip(tasks, specs, strict=True)
        ]
        view.begin(number, wrappers, ended=self._ended)
        try:
            self.driver.engine.submit(batch, view, limits=view, held=bool(named.pickles))
        except BaseException:
            view.forget(number, wrappers)
            raise
        view.inherit(stored)
        if named.pickles:
            over = self._over[number] = asyncio.Event()
            storing = asyncio.create_task(
                self._store_and_release(number, named, over), name=f"submission.{number}"
            )
            self._tasks.add(storing)
            storing.add_done_callback(self._tasks.discard)
        return wrappers

    def _require_its_loop(self) -> None:
        """Raises RuntimeError."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            raise RuntimeError(
                "tasks are scheduled in the event loop of their scheduler; from another thread: "
                "loop.call_soon_threadsafe(scheduler.schedule, tasks, batch_id)"
            )

    def _ended(self, number: int) -> None:
        """Removes the pickles of its tasks, and the values that they have stored for each other."""
        if number in self._over:
            self._over.pop(number).set()
        folder = self.driver.folder / _folder_of(number)
        if folder.exists():
            asyncio.get_running_loop().run_in_executor(
                None, partial(shutil.rmtree, folder, ignore_errors=True)
            )

    def close(self) -> None:
        """No submission begins from now on."""
        for over in self._over.values():
            over.set()

    async def _store_and_release(self, number: int, named: NamedTasks, over: asyncio.Event) -> None:
        stored: Counter[str] = Counter()
        error = ""
        try:
            await self._store(named, stored, over)
        except Exception as failure:  # noqa: BLE001  # Ray raises many types
            error = f"its pickles cannot be stored: {type(failure).__name__}: {failure}"
        if not over.is_set():
            self.driver.engine.release(number, error=error)
        await over.wait()
        try:
            await self.driver.cluster.call(partial(self.driver.pickle_store.release, stored))
        except Exception as failure:  # noqa: BLE001  # as above; what stays goes when the driver closes
            log.debug("tasks.release_failed", reason=f"{type(failure).__name__}: {failure}")

    async def _store(self, named: NamedTasks, stored: Counter[str], over: asyncio.Event) -> None:
        """Stores one by one, so that other calls into Ray are made in between, and frees each pickle."""
        while named.pickles and not over.is_set():
            name, pickled = named.pickles.popitem()
            uses = named.uses[name]
            await self.driver.cluster.call(partial(self.driver.pickle_store.store, name, pickled, uses=uses))
            stored[name] = uses


def _require_task(task: Any) -> None:
    """Raises TypeError."""
    kind = type(task)
    if not isinstance(task, Task):
        raise TypeError(
            f"a task must be a governor.tasks.Task, not {kind.__module__}.{kind.__qualname__}: "
            "Task(call, args, repeat_times=...)"
        )
    for name, value in (("args", task.args), ("resources", task.resources)):
        if not isinstance(value, Mapping):
            raise TypeError(f"task {task.id or task.call!r}: {name} must be a dict, not {value!r:.80}")


def _folder_of(number: int) -> str:
    return f"results/{number}"
