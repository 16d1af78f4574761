"""A listener that counts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from governor.messages import TaskRecord


class Counting:
    """A `BatchListener`."""

    def __init__(self) -> None:
        self.runs = self.failures = 0
        self.ended = asyncio.Event()

    def attempt_started(self, started: Any, *, pid: int, node: str) -> None: ...

    def attempt_ended(self, ended: Any) -> None: ...

    def traceback(self, attempt: Any, run: int, text: str) -> None: ...

    def run_ended(self, record: TaskRecord, payload: bytes) -> None:
        del payload
        self.runs += 1
        self.failures += record.outcome != "succeeded"

    def batch_ended(self, ended: Any) -> None:
        del ended
        self.ended.set()
