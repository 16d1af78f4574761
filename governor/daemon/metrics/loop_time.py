"""How long the daemon's event loop is busy: measured where it begins and ends to wait, so that it costs no timer."""

from __future__ import annotations

import asyncio
import selectors
import time
from bisect import bisect_left

from governor.messages import LoopTime
from governor.metrics import STRETCHES


class TimedSelector(selectors.EpollSelector):
    """The selector of one event loop. Between two calls of `select` the loop runs what is due: nothing else can run."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        """Measures from now on."""
        self._busy = self._longest = 0.0
        self._stretches = [0] * (len(STRETCHES) + 1)
        self._since = time.perf_counter()

    def new_loop(self) -> asyncio.SelectorEventLoop:
        return asyncio.SelectorEventLoop(self)

    @property
    def loop_time(self) -> LoopTime:
        return LoopTime(busy=self._busy, longest=self._longest)

    @property
    def stretches(self) -> dict[float, int]:
        """How many stretches were not longer than each bound, and longer than the one before."""
        return dict(zip((*STRETCHES, float("inf")), self._stretches, strict=True))

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        stretch = time.perf_counter() - self._since
        self._busy += stretch
        self._longest = max(self._longest, stretch)
        self._stretches[bisect_left(STRETCHES, stretch)] += 1
        try:
            return super().select(timeout)
        finally:
            self._since = time.perf_counter()
