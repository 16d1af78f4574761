"""How long somebody has been silent, of the time in which we were there to hear it.

A process that was stopped, or starved, wakes up with all its deadlines passed: what it calls silence is its own absence.
So silence is counted in beats, and a beat that comes late begins the count anew.
"""

from __future__ import annotations

from typing import Final

BEAT_SECONDS: Final = 1.0
LATE_SECONDS: Final = 0.5
"""Later than this, and who counts was held up himself."""


class SilenceTimer:
    """Begins at `now`. `passed` is to be called each `beat` seconds."""

    def __init__(self, now: float, *, beat: float = BEAT_SECONDS) -> None:
        self._beat = beat
        self._counted = now
        self.seconds = 0.0

    def heard(self, now: float) -> None:
        """A sign of life."""
        self._counted = now
        self.seconds = 0.0

    def passed(self, now: float) -> float:
        """Another beat without a sign; the seconds of silence so far."""
        step = now - self._counted
        self._counted = now
        self.seconds = 0.0 if step > self._beat + LATE_SECONDS else self.seconds + step
        return self.seconds
