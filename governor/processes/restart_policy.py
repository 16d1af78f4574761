"""Restart policy of a supervised process: a back-off, a maximum of exits in a row, and a summary of them.

A process that ran for `steady` seconds is healthy: its exit resets the count. So a process that exits or freezes soon
after each start uses the maximum up, however slowly; one that is killed now and then never does.
"""

from __future__ import annotations

from typing import Final

from transport.backoff import Backoff

SHOWN_EXITS: Final = 3
"""Exits that the summary lists: the first two, and the last."""


class RestartPolicy:
    """Allows `most` exits in a row. `first` and `longest` bound the delay before a restart, in seconds."""

    def __init__(self, *, most: int, steady: float, first: float, longest: float) -> None:
        self._most = most
        self._steady = steady
        self._backoff = Backoff(first, longest)
        self._exits = 0
        self._reasons: list[str] = []

    @property
    def exhausted(self) -> bool:
        return self._exits >= self._most

    @property
    def delay(self) -> float:
        """Seconds to wait before the next start; none before the very first."""
        return self._backoff.delay(self._exits - 1) if self._exits else 0.0

    @property
    def summary(self) -> str:
        """One line, to follow the name of the process."""
        shown = self._reasons
        if self._exits > SHOWN_EXITS:
            shown = [*shown[: SHOWN_EXITS - 1], "…", shown[-1]]
        return f"died {self._exits} times in a row, each within {self._steady:g} s: {'; '.join(shown)}"

    def exited(self, how: str, *, lived: float) -> None:
        """`how` goes into the summary; `lived`: seconds since it was started."""
        if lived >= self._steady:
            self._exits = 0
            self._reasons.clear()
        self._exits += 1
        del self._reasons[SHOWN_EXITS - 1 :]
        self._reasons.append(f"{how} after {lived:.1f} s")
