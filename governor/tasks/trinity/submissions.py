"""Submissions of batches to the engine, with the pickles that their tasks need in Ray's store.

Rules:
1. Pickles are stored before the submission begins, and deleted when it has ended with all its retries.
2. Calls into Ray are made in Ray's thread: neither a large argument nor an unresponsive store blocks the event loop.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from governor import logs
from governor.tasks.api import sort_batch_id
from governor.tasks.scheduling.events import BatchSpec
from governor.tasks.trinity.handover import specs_of
from governor.tasks.trinity.views import TaskWrapper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.messages import TaskRecord, TaskSpec
    from governor.tasks.api import BatchId, SchedulerConfig, Task
    from governor.tasks.driver import Driver
    from governor.tasks.runner_process.pickled import NamedTasks
    from governor.tasks.scheduling.events import SchedulingLimits
    from governor.tasks.trinity.views import BatchView

log = logs.get_logger()


def submission(
    number: int,
    specs: Sequence[TaskSpec],
    *,
    name: BatchId,
    budget: float,
    split: int | None = None,
    rank: tuple[float, int] = (0.0, 0),
    done: tuple[TaskRecord, ...] = (),
    pin: int | None = None,
    kept_in: str = "",
) -> BatchSpec:
    """A batch of the engine; its folder is removed with it, unless it is the permanent one in `kept_in`."""
    return BatchSpec(
        id=number,
        name=name,
        tasks=tuple(specs),
        split=split,
        rank=rank,
        done=done,
        pin=pin,
        budget=budget,
        payload_inline=not kept_in,
        folder=kept_in or _folder_of(number),
    )


class Planned(NamedTuple):
    """A submission before it is made, with the pickles that its tasks need."""

    batch: BatchSpec
    tasks: list[TaskWrapper]
    named: NamedTasks

    @property
    def number(self) -> int:
        return int(self.batch.id)


class Submissions:
    """The submissions of one driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._over: dict[int, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def name(
        self, tasks: Sequence[Task], first: int, config: SchedulerConfig
    ) -> tuple[list[TaskSpec], NamedTasks]:
        """The tasks as the engine takes them (`specs_of`), and what they need. Raises TypeError and ValueError."""
        named = self._driver.pickle_store.name_tasks(
            [task.call for task in tasks], [task.args for task in tasks]
        )
        return specs_of(tasks, first, config=config, named=named), named

    def plan(self, number: int, tasks: Sequence[Task], view: BatchView, config: SchedulerConfig) -> Planned:
        """Of a batch of the scheduler. Raises TypeError, and ValueError, also for ids that the batch has."""
        specs, named = self.name(tasks, view.scheduled, config)
        view.refuse_known(spec.id for spec in specs)
        batch = submission(
            number,
            specs,
            name=view.batch_id,
            budget=config.max_timeout * (config.max_retry_times + 1),
            split=config.max_repeat_times_per_runner,
            rank=sort_batch_id(view.batch_id),
            done=() if view.stored is None else tuple(view.stored.succeeded({spec.id for spec in specs})),
            kept_in="" if view.stored is None else view.stored.folder,
        )
        wrappers = [
            TaskWrapper(task, view.batch_id, task_id=spec.id, total_runs=spec.repeat)
            for task, spec in zip(tasks, specs, strict=True)
        ]
        return Planned(batch, wrappers, named)

    def schedule(self, planned: Planned, view: BatchView, limits: SchedulingLimits) -> None:
        """As `submit`, of a batch of the scheduler; nothing has changed when it raises."""
        view.begin(planned.number, planned.tasks)
        try:
            self.submit(planned.batch, view, planned.named, limits=limits)
        except BaseException:
            view.forget(planned.number, planned.tasks)
            raise
        view.inherit(planned.batch.done)

    def submit(
        self, batch: BatchSpec, view: BatchView, named: NamedTasks, limits: SchedulingLimits | None = None
    ) -> None:
        """Submits a batch to the engine; it begins when its pickles are stored, and fails if they can't be. Raises
        GraphError and QueueFull.
        """
        number = int(batch.id)
        self._driver.engine.submit(batch, view, limits=limits, held=bool(named.pickles))
        if not named.pickles:
            return
        over = self._over[number] = asyncio.Event()
        task = asyncio.create_task(self._store_and_release(number, named, over), name=f"submission.{number}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ended(self, number: int) -> None:
        """Removes the pickles of its tasks, and the values that they have stored for each other."""
        self._finish(number)
        folder = self._driver.folder / _folder_of(number)
        if folder.exists():
            asyncio.get_running_loop().run_in_executor(
                None, partial(shutil.rmtree, folder, ignore_errors=True)
            )

    def close(self) -> None:
        """No submission begins from now on."""
        for number in list(self._over):
            self._finish(number)

    def _finish(self, number: int) -> None:
        over = self._over.pop(number, None)
        if over is not None:
            over.set()

    async def _store_and_release(self, number: int, named: NamedTasks, over: asyncio.Event) -> None:
        stored: Counter[str] = Counter()
        error = ""
        try:
            await self._store(named, stored, over)
        except Exception as failure:  # noqa: BLE001  # Ray raises many types
            error = f"its pickles cannot be stored in Ray: {type(failure).__name__}: {failure}"
        if not over.is_set():
            self._driver.engine.release(number, error=error)
        await over.wait()
        try:
            await self._call(partial(self._driver.pickle_store.release, stored))
        except Exception as failure:  # noqa: BLE001  # as above; what stays goes when the driver closes
            log.debug("tasks.release_failed", reason=f"{type(failure).__name__}: {failure}")

    async def _store(self, named: NamedTasks, stored: Counter[str], over: asyncio.Event) -> None:
        """Stores one by one, so that other calls into Ray are made in between, and frees each pickle."""
        while named.pickles and not over.is_set():
            name, pickled = named.pickles.popitem()
            uses = named.uses[name]
            await self._call(partial(self._driver.pickle_store.store, name, pickled, uses=uses))
            stored[name] = uses

    async def _call(self, function: partial[None]) -> None:
        if self._driver.cluster is not None:
            await self._driver.cluster.call(function)


def _folder_of(number: int) -> str:
    return f"results/{number}"
