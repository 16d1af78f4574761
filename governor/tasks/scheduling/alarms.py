"""When to check a runner, a batch or the core again. Pure; an alarm that is no longer needed fires without effect."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.tasks.api import BatchId


class Alarms:
    """A heap of alarms, in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int | None, BatchId | None]] = []
        self._order = count()

    def set_runner(self, when: float, runner: int) -> None:
        heapq.heappush(self._heap, (when, next(self._order), runner, 0))

    def set_batch(self, when: float, batch: BatchId) -> None:
        heapq.heappush(self._heap, (when, next(self._order), None, batch))

    def set_core(self, when: float) -> None:
        """For the checks that follow every event."""
        heapq.heappush(self._heap, (when, next(self._order), None, None))

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[tuple[int | None, BatchId | None]]:
        """Runner, or None and a batch, or twice None, of every alarm until `now`."""
        while self._heap and self._heap[0][0] <= now:
            _, _, runner, batch = heapq.heappop(self._heap)
            yield runner, batch
