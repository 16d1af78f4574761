"""Measures how long a peer has sent nothing, without the time in which this process itself did not run.

When a process that was stopped or starved runs again, all its deadlines have passed, and its peers may be healthy.
So the timer adds up ticks, and a tick that comes late resets it.
"""

from __future__ import annotations

from typing import Final

TICK_SECONDS: Final = 1.0
LATE_SECONDS: Final = 0.5
"""A tick that is later than this shows that this process was held up itself."""


class SilenceTimer:
    """Starts at `now`. Call `tick` every `interval` seconds."""

    def __init__(self, now: float, *, interval: float = TICK_SECONDS) -> None:
        self._interval = interval
        self._counted = now
        self.seconds = 0.0

    def reset(self, now: float) -> None:
        """The peer has sent something."""
        self._counted = now
        self.seconds = 0.0

    def tick(self, now: float) -> float:
        """Another interval without a message; returns the seconds of silence so far."""
        step = now - self._counted
        self._counted = now
        self.seconds = 0.0 if step > self._interval + LATE_SECONDS else self.seconds + step
        return self.seconds
