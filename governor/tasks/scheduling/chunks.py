"""How many episodes a runner gets at a time, so that ten thousand short ones are not ten thousand tasks.

A chunk holds about `AIM_SECONDS` of work, estimated by the latest episodes; one episode while there is no estimate.
Towards the end chunks become smaller, so that all workers end together, but not below `LEAST_SECONDS`.
"""

from __future__ import annotations

from math import ceil
from typing import Final

AIM_SECONDS: Final = 1.0
LEAST_SECONDS: Final = 0.05
"""Sending a chunk costs some 2 ms."""
MOST: Final = 10_000
EPISODE_SECONDS: Final = 100e-6
"""Overhead of an episode beside its steps."""
WEIGHT: Final = 0.1
"""Of the last episode in the moving mean."""


class ChunkSizes:
    """Chunk sizes of one phase; `fixed` is the size in its run file. Not thread-safe."""

    def __init__(self, *, workers: int, fixed: int | None = None) -> None:
        self._workers = workers
        self._fixed = fixed
        self._mean: float | None = None

    def observe(self, seconds: float) -> None:
        """An episode has taken so many seconds."""
        self._mean = seconds if self._mean is None else self._mean + WEIGHT * (seconds - self._mean)

    def next(self, left: int) -> int:
        """Episodes for an idle worker, while `left` episodes have not been assigned."""
        if self._fixed is not None:
            return self._fixed
        if self._mean is None:
            return 1
        each = self._mean + EPISODE_SECONDS
        share = ceil(left / (2 * self._workers))
        return max(1, min(MOST, int(AIM_SECONDS / each), max(share, int(LEAST_SECONDS / each))))
