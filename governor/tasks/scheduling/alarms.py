"""When to check a runner, a batch or the core again. Pure; an alarm that is no longer needed fires without effect."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.tasks.scheduling.batch import Batch
    from governor.tasks.scheduling.runner_slots import RunnerSlot

    Target: TypeAlias = RunnerSlot | Batch | None


class Alarms:
    """A heap of alarms, in seconds of the caller's clock. Target None: for the checks that follow every event."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Target]] = []
        self._order = count()

    def set(self, when: float, target: Target) -> None:
        heapq.heappush(self._heap, (when, next(self._order), target))

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[Target]:
        """The targets of all alarms until `now`."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]
