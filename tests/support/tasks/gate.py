"""Tasks in other processes that wait for a test's orders, so that no test sleeps: a task connects, receives an order, and the
test observes its end.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Visit:
    """One active run of `batch_deeds.visit`; it `began` in monotonic seconds of its own clock."""

    task: str
    run: int
    attempt: int
    pid: int
    began: float
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def tell(self, order):
        """``"go"`` on, ``"fail"``, ``"die"``, ``"hold the GIL"`` (which a signal ends), or ``"hold the GIL for good"``."""
        self.writer.write(order.encode())

    async def heard(self):
        return await self.reader.readline()

    async def gone(self):
        """Returns when its process is dead or its task has ended."""
        while await self.reader.readline():
            pass


class Gate:
    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="gate-", dir="/tmp"))
        self.path = str(self.folder / "s")
        self.arrivals = asyncio.Queue()

    async def __aenter__(self):
        self.server = await asyncio.start_unix_server(self._arrive, self.path)
        return self

    async def __aexit__(self, *_):
        self.server.close()
        shutil.rmtree(self.folder)

    async def _arrive(self, reader, writer):
        me = json.loads(await reader.readline())
        self.arrivals.put_nowait(Visit(**me, reader=reader, writer=writer))

    async def visit(self, seconds=20):
        """The next task that connects."""
        async with asyncio.timeout(seconds):
            return await self.arrivals.get()

    async def visits(self, number):
        """The next `number` tasks that connect, by task and run."""
        found = [await self.visit() for _ in range(number)]
        return {(visit.task, visit.run): visit for visit in found}
