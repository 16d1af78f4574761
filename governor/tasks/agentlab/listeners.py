"""The batch listener of a graph, in the engine's thread."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

from governor.tasks.agentlab.study import SYNC_SECONDS
from governor.tasks.ports import BatchListener

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from governor.messages import TaskRecord
    from governor.tasks.agentlab.study import Study
    from governor.tasks.scheduling.events import BatchEnded


class GraphListener(BatchListener):
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
        self._is_sync_due = False
        self._error: OSError | None = None

    def run_ended(self, record: TaskRecord, payload: bytes) -> None:
        del payload  # experiments have none
        self.records.append(record)
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
