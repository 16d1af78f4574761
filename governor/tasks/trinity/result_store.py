"""Results of a scheduler that outlive its process: in a folder, one study for each batch.

Rules:
1. A run that has succeeded is in the kernel before it is reported. Payloads and large values are in files that their
   runner has written before its report.
2. A batch that is scheduled again, by this process or a later one, gets the stored results: only missing runs execute.
3. Results stay until `forget`, also after they were returned to a caller.
"""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from governor import logs
from governor.tasks.agentlab.study import SYNC_SECONDS, Study
from governor.tasks.work import file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from governor.messages import TaskRecord
    from governor.tasks.api import BatchId

log = logs.get_logger()


class ResultStore:
    """The results of one scheduler."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).resolve()
        self._open: dict[BatchId, StoredBatch] = {}
        self._closing: dict[BatchId, Future[None]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="result-store")

    def batch(self, batch_id: BatchId) -> StoredBatch:
        """Opens it, unless it is open. Raises OSError, and TryAgain while another process works on it."""
        stored = self._open.get(batch_id)
        if stored is None:
            self._closed(batch_id)
            stored = self._open[batch_id] = StoredBatch(self.folder, _name(batch_id), self._thread)
        return stored

    def leave(self, batch_id: BatchId) -> None:
        """Closes a batch none of whose tasks is active."""
        stored = self._open.pop(batch_id, None)
        if stored is not None:
            self._closing = {key: closing for key, closing in self._closing.items() if not closing.done()}
            self._closing[batch_id] = stored.close()

    def forget(self, batch_id: BatchId) -> None:
        """Removes the results of a batch. Raises ValueError for one that is open."""
        if batch_id in self._open:
            raise ValueError(f"batch {batch_id!r} is still active")
        self._closed(batch_id)
        shutil.rmtree(self.folder / _name(batch_id), ignore_errors=True)

    async def close(self) -> None:
        """Returns when all of it is on the disk."""
        for batch_id in list(self._open):
            self.leave(batch_id)
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: None)

    def _closed(self, batch_id: BatchId) -> None:
        """Waits for a file that is being closed; takes milliseconds."""
        closing = self._closing.get(batch_id)
        if closing is not None:
            wait([closing])


class StoredBatch:
    """`folder` is its own, below that of all."""

    def __init__(self, root: Path, folder: str, thread: ThreadPoolExecutor) -> None:
        self.folder = folder
        self._root = root
        self._thread = thread
        self._stack = ExitStack()
        self._study = self._stack.enter_context(Study(root / folder))
        self._alarm: asyncio.TimerHandle | None = None
        self._failed = False

    def succeeded(self, tasks: Collection[str]) -> list[TaskRecord]:
        """The runs of these tasks that need not run again."""
        return self._study.succeeded(tasks, root=self._root)

    def enter(self, record: TaskRecord) -> None:
        """Stores a run that has succeeded. If the disk is full, its result is not stored, and the batch goes on."""
        if record.outcome != "succeeded" or self._failed:
            return
        try:
            self._study.enter(record)
        except OSError as error:
            self._failed = True
            log.exception("scheduler.store_failed", folder=str(self._root / self.folder), reason=str(error))
            return
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(SYNC_SECONDS, self._sync)

    def payload(self, record: TaskRecord) -> bytes:
        """The payload of a run; empty if it has none."""
        path = self._root / self.folder / f"{file_name(record.task)}-{record.run}.payload"
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return b""

    def close(self) -> Future[None]:
        """Done when all of it is on the disk and another process may have it."""
        if self._alarm is not None:
            self._alarm.cancel()
        return self._thread.submit(self._in_thread, self._stack.close)

    def _sync(self) -> None:
        self._alarm = None
        self._thread.submit(self._in_thread, self._study.sync)

    def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            log.exception("scheduler.store_failed", folder=str(self._root / self.folder), reason=str(error))


def _name(batch_id: BatchId) -> str:
    """The number 7 and the text "7" are two batches."""
    is_number_like = isinstance(batch_id, str) and batch_id.isdigit()
    return f"batches/{file_name(repr(batch_id) if is_number_like else str(batch_id))}"
