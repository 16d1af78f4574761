"""Exponential back-off: how long to wait before the next attempt. For the transport, and for the governor above it.

States have a formula of their own for the restarts of conductors: they are pure, and know nothing of the transport.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf
from typing import Final

_DOUBLINGS: Final = 64
"""Beyond that a float may overflow."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first` seconds before the first retry, doubled for each further one, up to `longest`. Up to `spread` times as much is added at
    random, so that clients that were refused together do not return together.
    """

    first: float
    longest: float = inf
    spread: float = 0.0

    def delay(self, retry: int, *, least: float = 0.0) -> float:
        """Seconds before retry number `retry`, from 0: not less than `least`, unless that is more than `longest`."""
        seconds = min(self.first * 2.0 ** min(retry, _DOUBLINGS), self.longest / (1 + self.spread))
        seconds *= 1 + self.spread * random.random()  # noqa: S311 - no secret
        return min(max(seconds, least), self.longest)
