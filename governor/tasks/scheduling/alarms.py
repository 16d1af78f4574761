"""When the scheduler is to look again."""

from __future__ import annotations

import heapq
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from governor.tasks.scheduling.runner_slots import RunnerSlot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.tasks.scheduling.batch import Batch

    Target: TypeAlias = RunnerSlot | Batch | None


class Alarms:
    """When to check a runner, a batch or, for None, the core again; in seconds of the caller's clock. An alarm that is no
    longer needed fires without effect.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Target]] = []
        self._order = count()
        self._gone = 0
        """Runners that have exited since the last look for their alarms."""

    def set(self, when: float, target: Target) -> None:
        heapq.heappush(self._heap, (when, next(self._order), target))

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[Target]:
        """The targets of all alarms until `now`."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]

    def runner_gone(self) -> None:
        """Removes alarms of runners that have exited once they may be half of all: a deadline may be hours away."""
        self._gone += 1
        if 2 * self._gone >= len(self._heap):
            self._gone = 0
            left = (each for each in self._heap if not _is_needless(each[2]))
            self._heap = sorted(left, key=itemgetter(0, 1))


def _is_needless(target: Target) -> bool:
    return isinstance(target, RunnerSlot) and target.alarm_at is None
