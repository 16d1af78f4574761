"""How late tasks that miss their deadline are dead: every process of theirs, seen from outside."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Any

from support.rows import Row
from tasks.listener import Counting

from governor.messages import TaskSpec
from governor.tasks.scheduling.events import BatchSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from governor.messages import TaskRecord
    from governor.tasks.engine import Engine

TIMES = 20
TIMEOUT = 0.3
GRACE = 0.1
DEEDS = {
    "sleep": "sleep",
    "python": "pure Python",
    "gil": "C code that holds the GIL",
    "swallow": "one that swallows BaseException",
    "child": "one that waits on a subprocess",
    "grandchild": "one with a setsid grandchild",
}


class _Deaths(Counting):
    """When a run has ended, its processes must be dead, and that must not be late."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._began: dict[int, float] = {}
        self.late: list[float] = []
        self.alive = 0

    def attempt_started(self, started: Any, *, pid: int, node: str) -> None:
        del pid, node
        self._began[started.run] = started.at

    def run_ended(self, record: TaskRecord, payload: bytes) -> None:
        super().run_ended(record, payload)
        now = time.monotonic()
        if record.outcome != "timed_out":
            raise RuntimeError(f"{record.task} {record.outcome}: {record.error}")
        note = self._folder / f"{record.task}-{record.run}"
        self.alive += sum(map(_is_alive, note.read_text(encoding="utf-8").split()))
        self.late.append(now - self._began[record.run] - TIMEOUT - GRACE)


def _is_alive(pid: str) -> bool:
    try:
        handle = os.pidfd_open(int(pid))
    except ProcessLookupError:
        return False
    try:
        return not select.select([handle], [], [], 0)[0]
    finally:
        os.close(handle)


async def lateness(engine: Engine, folder: Path) -> AsyncIterator[Row]:
    notes = folder / "notes"
    notes.mkdir()
    every: list[float] = []
    survivors, parts = 0, []
    for number, (deed, name) in enumerate(DEEDS.items()):
        listener = _Deaths(notes)
        spec = TaskSpec(
            id=deed, call=f"tasks.code:{deed}", args={"folder": str(notes)}, timeout=TIMEOUT, repeat=TIMES
        )
        engine.submit(BatchSpec(id=-1 - number, tasks=(spec,), split=1, grace=GRACE), listener)
        await listener.ended.wait()
        every += listener.late
        survivors += listener.alive
        parts.append(f"{name} {max(listener.late) * 1000:.0f}")
    every.sort()
    yield Row(
        what=f"death after deadline + grace, {TIMES} each of {len(DEEDS)} kinds: p99",
        figure=every[round(len(every) * 0.99) - 1] * 1000,
        unit="ms",
        peer="AgentLab 60 s to never",
        at_most=100,
        note=f"p50 {every[len(every) // 2] * 1000:.0f} ms; the latest of each: {', '.join(parts)} ms",
        if_missed="the machine was busy",
    )
    yield Row(what="processes that survived", figure=survivors, unit="", at_most=0)
