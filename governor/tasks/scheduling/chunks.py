"""How many episodes a runner gets at a time, so that ten thousand short ones are not ten thousand tasks.

A chunk holds about `AIM_SECONDS` of work by what episodes took lately, one episode as long as nobody knows. Towards the end
chunks become smaller, so that all workers end together, but never so small that they are not worth their way.
"""

from __future__ import annotations

from math import ceil
from typing import Final

AIM_SECONDS: Final = 1.0
LEAST_SECONDS: Final = 0.05
"""A chunk costs some 2 ms on its way."""
MOST: Final = 10_000
EPISODE_SECONDS: Final = 100e-6
"""What an episode costs beside its steps."""
WEIGHT: Final = 0.1
"""Of the last episode in the mean."""


class ChunkSizes:
    """Of one phase; `fixed` is what its run file says. Not for several threads at once."""

    def __init__(self, *, workers: int, fixed: int | None = None) -> None:
        self._workers = workers
        self._fixed = fixed
        self._mean: float | None = None

    def seen(self, seconds: float) -> None:
        """An episode has taken so long."""
        self._mean = seconds if self._mean is None else self._mean + WEIGHT * (seconds - self._mean)

    def next(self, left: int) -> int:
        """For a worker that has nothing to do while `left` episodes have not been handed out."""
        if self._fixed is not None:
            return self._fixed
        if self._mean is None:
            return 1
        each = self._mean + EPISODE_SECONDS
        share = ceil(left / (2 * self._workers))
        return max(1, min(MOST, int(AIM_SECONDS / each), max(share, int(LEAST_SECONDS / each))))
