"""A listener of one batch that records its events; tests can wait for them."""

from __future__ import annotations

import asyncio


class Ends:
    """The listener of a batch."""

    def __init__(self):
        self.records = {}
        self.retried = []
        self.started = {}
        self.news = asyncio.Event()
        self.end = None

    def attempt_started(self, started, *, pid, node):
        self.started.setdefault((started.attempt.task.id, started.attempt.number), (started.runner, pid))
        self.news.set()

    def attempt_ended(self, ended):
        self.retried.append((ended.attempt.task.id, ended.outcome, ended.error))

    def run_ended(self, record, payload):
        self.records[record.task] = record

    def traceback(self, *_):
        pass

    def batch_ended(self, ended):
        self.end = ended
        self.news.set()

    async def until(self, condition, seconds=30):
        async with asyncio.timeout(seconds):
            while not condition():
                self.news.clear()
                await self.news.wait()
