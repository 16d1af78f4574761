"""The batches of a scheduler: each is there from its first task until all of its results were handed out or dropped."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from governor.tasks.api import DynamicTimeout
from governor.tasks.scheduling.dynamic_timeout import TimeoutEstimator
from governor.tasks.trinity.handover import results_of
from governor.tasks.trinity.views import BatchView, Notifier, Totals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.tasks.api import BatchId
    from governor.tasks.trinity.result_store import ResultStore
    from governor.tasks.trinity.views import CompletedTaskResult, Order


class Batches(dict["BatchId", BatchView]):
    """By their ids. `changed` is notified of every change; `totals` are of all that ever were."""

    def __init__(self, store: ResultStore | None) -> None:
        super().__init__()
        self.changed = Notifier()
        self.totals = Totals()
        self._store = store
        self._private: set[BatchView] = set()
        """Of single runners: they are nobody else's to see."""

    @contextmanager
    def opened(
        self, batch_id: BatchId, *, split: int | None, estimator: TimeoutEstimator
    ) -> Iterator[BatchView]:
        """The batch, for tasks that are added to it meanwhile; a new one where there is none. Raises OSError and TryAgain as
        `ResultStore.batch`.
        """
        view = self.get(batch_id) or BatchView(
            batch_id, split=split, estimator=estimator, everywhere=self.changed, totals=self.totals
        )
        if self._store is not None:
            view.stored = self._store.batch(batch_id)
        self[batch_id] = view
        try:
            yield view
        finally:
            self.tidy(view)

    @contextmanager
    def private(self, name: BatchId, *, max_timeout: float) -> Iterator[BatchView]:
        """A batch of the engine that no other caller sees; `end` ends it like the others."""
        view = BatchView(name, split=None, estimator=TimeoutEstimator(DynamicTimeout(), max_timeout))
        self._private.add(view)
        try:
            yield view
        finally:
            self._private.discard(view)

    async def hand_out(self, batch_id: BatchId, order: Order) -> list[CompletedTaskResult]:
        """What has ended; it is the caller's from now on. A caller that is cancelled gets nothing, and nothing is lost."""
        view = self.get(batch_id)
        if view is None:
            return []
        with view.taken() as taken:
            results = await asyncio.to_thread(results_of, batch_id, taken, order)
        self.tidy(view)
        return results

    async def peek(self, batch_id: BatchId) -> list[CompletedTaskResult]:
        """What has ended, in the order of the tasks."""
        view = self.get(batch_id)
        if view is None:
            return []
        return await asyncio.to_thread(results_of, batch_id, list(view.completed.values()))

    def discard(self, batch_id: BatchId) -> None:
        """Drops what has ended."""
        view = self.get(batch_id)
        if view is not None:
            with view.taken():
                pass  # dropped
            self.tidy(view)

    def end(self) -> None:
        """The engine is closed: runs without an outcome will have none."""
        for view in [*self.values(), *self._private]:
            view.end()
            self.tidy(view)

    def tidy(self, view: BatchView) -> None:
        """Forgets it if nothing is left of it."""
        if view.is_empty and self.get(view.batch_id) is view:
            del self[view.batch_id]
            if self._store is not None:
                self._store.leave(view.batch_id)
