"""How often, and how fast, what dies is started again: back-off, a budget, and the story of those that died.

What lived for `steady` seconds has shown that it can: the count begins anew with its death. So a process that dies, or
freezes, at once each time comes to an end however slowly, and one that is killed now and then never does.
"""

from __future__ import annotations

from typing import Final

TOLD: Final = 3
"""Deaths that the story tells of: the first two, and the last."""


class RestartPolicy:
    """Deaths in a row: `most` of them use the budget up. `first` and `longest` bound the back-off, in seconds."""

    def __init__(self, *, most: int, steady: float, first: float, longest: float) -> None:
        self._most = most
        self._steady = steady
        self._first = first
        self._longest = longest
        self._deaths = 0
        self._told: list[str] = []

    @property
    def used_up(self) -> bool:
        return self._deaths >= self._most

    @property
    def back_off(self) -> float:
        """Seconds to wait before the next start; none before the very first."""
        doublings = min(self._deaths - 1, 64)  # beyond that a float may overflow
        return min(self._first * 2.0**doublings, self._longest) if self._deaths else 0.0

    @property
    def story(self) -> str:
        """A clause for the name of who died, in one line."""
        told = self._told
        if self._deaths > TOLD:
            told = [*told[: TOLD - 1], "…", told[-1]]
        return f"died {self._deaths} times in a row, each within {self._steady:g} s: {'; '.join(told)}"

    def died(self, how: str, *, lived: float) -> None:
        """`how` is told; `lived`: seconds since it was started."""
        if lived >= self._steady:
            self._deaths = 0
            self._told.clear()
        self._deaths += 1
        del self._told[TOLD - 1 :]
        self._told.append(f"{how} after {lived:.1f} s")
