"""The engine with the journal beside it: the outcome of every task is durable, in the way the governor records it.

The journal is the governor's own, in this process; what the daemon adds (its broker, its process) is measured elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from tasks.listener import Counting

from governor.journal.journal import Journal
from governor.messages import TaskEnded
from governor.runs.report_handler import record_all

if TYPE_CHECKING:
    from pathlib import Path

    from governor.journal.tables import Transaction
    from governor.messages import TaskRecord
    from governor.tasks.engine import Engine
    from governor.tasks.scheduling.events import BatchSpec


class _Recording(Counting):
    def __init__(self, journal: Journal, uid: str) -> None:
        super().__init__()
        self._journal = journal
        self._uid = uid
        self._waiting: list[TaskEnded] = []
        self._arrived = asyncio.Event()

    def run_ended(self, record: TaskRecord, payload: bytes) -> None:
        super().run_ended(record, payload)
        self._waiting.append(TaskEnded(phase=0, record=record))
        self._arrived.set()

    def batch_ended(self, ended: Any) -> None:
        super().batch_ended(ended)
        self._arrived.set()

    async def record(self) -> None:
        """Returns when all is durable; one transaction at a time, of all that has come meanwhile."""
        while not (self.ended.is_set() and not self._waiting):
            await self._arrived.wait()
            self._arrived.clear()
            events, self._waiting = self._waiting, []

            def change(transaction: Transaction, events: list[TaskEnded] = events) -> int:
                return len(record_all(transaction, self._uid, events))

            await self._journal.write(change)


class Journaled:
    """Runs batches on an engine, each recorded as a run of its own."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        self._journal = Journal(folder / f"journal-{time.monotonic_ns()}.db")

    async def run(self, batch: BatchSpec) -> float:
        """Seconds from the submission until the last outcome is durable."""
        uid = f"run-{batch.id}"
        await self._journal.write(
            lambda transaction: transaction.submit(uid=uid, key=None, name=uid, spec={}, folder="")
        )
        listener = _Recording(self._journal, uid)
        began = time.perf_counter()
        self._engine.submit(batch, listener)
        await listener.record()
        seconds = time.perf_counter() - began
        recorded, runs = self._journal.tasks_ended(uid, 0), sum(task.repeat for task in batch.tasks)
        if recorded != runs:
            raise RuntimeError(f"{recorded} of {runs} outcomes are on record")
        return seconds

    async def close(self) -> None:
        await self._journal.close()
