"""What one run of a task has reported, in a size that does not grow with the number of reports.

Rules:
1. They are due `FIRST_SECONDS` after the first one, and then each time that a part of `SPARING` of the run's time has passed, but at
   most once a second, and at its end: a run of ten hours sends some 2,000 messages, and one of a moment one.
2. At most `metrics.MOST` names; values that are not finite are counted.
"""

from __future__ import annotations

import threading
from math import isfinite
from typing import TYPE_CHECKING, Final

from governor.episodes.metrics import MOST, NONFINITE, drop
from governor.messages import ReportedSums

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST_SECONDS: Final = 1.0
SPARING: Final = 300


class RunMetrics:
    """`began` is on the monotonic clock. For any thread."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._due = began + FIRST_SECONDS
        self._lock = threading.Lock()
        self._pending: dict[str, ReportedSums] = {}
        self._last: dict[str, float] = {}
        self._others: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        """How many values of each name were taken."""

    def add(self, values: Mapping[str, float], now: float) -> bool:
        """Whether they are due."""
        with self._lock:
            for name, value in values.items():
                if name not in self._last and name not in self._others and len(self._names) >= MOST:
                    drop(name)
                    continue
                if isfinite(value):
                    self._last[name] = value
                else:
                    self._others[name] = self._others.get(name, 0) + 1
                self._pending[name] = self._with(name, value, now - self._began)
            if now < self._due or not self._pending:
                return False
            self._due = now + max(1.0, (now - self._began) / SPARING)
            return True

    @property
    def _names(self) -> set[str]:
        return self._last.keys() | self._others.keys()

    def take(self) -> dict[str, ReportedSums]:
        """What was added since the last call."""
        with self._lock:
            pending, self._pending = self._pending, {}
            for name, sums in pending.items():
                self._sent[name] = sums.total
            return pending

    def figures(self) -> dict[str, float]:
        """The last finite value of each name, and how many were not finite."""
        with self._lock:
            others = {f"{name}{NONFINITE}": float(count) for name, count in self._others.items()}
            return self._last | others

    def _with(self, name: str, value: float, seconds: float) -> ReportedSums:
        known = self._pending.get(name)
        if known is None:
            known = ReportedSums(0, 0.0, 0.0, 0.0, 0.0, before=self._sent.get(name, 0))
        count, mean, low, high = known.count, known.mean, known.low, known.high
        others, before = known.others, known.before
        if not isfinite(value):
            return ReportedSums(count, mean, low, high, known.last, others + 1, before, seconds)
        if not count:
            return ReportedSums(1, value, value, value, value, others, before, seconds)
        mean += value / (count + 1) - mean / (count + 1)
        return ReportedSums(
            count + 1, mean, min(low, value), max(high, value), value, others, before, seconds
        )
