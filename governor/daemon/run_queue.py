"""Runs that wait for a slot: first come, first served, bounded.

Each has a number; the numbers grow from front to back. Those between that wait no more are `_gaps`, so that a position is
found without a walk along the queue.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from governor.errors import TryAgain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.runs.assignment import Assignment


class RunQueue:
    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        self._waiting: OrderedDict[str, tuple[int, Assignment]] = OrderedDict()
        self._first = self._next = 0
        """The numbers of the run at the front, and of the next one at the back."""
        self._gaps: list[int] = []
        self._promised = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, uid: str) -> bool:
        return uid in self._waiting

    @contextmanager
    def place(self) -> Iterator[None]:
        """Reserves a place in the queue while its run is being recorded. Raises TryAgain when the queue is full."""
        if len(self._waiting) + self._promised >= self.limit:
            raise TryAgain(
                f"{self.limit} runs are queued already (queue_limit); submit again when some have ended"
            )
        self._promised += 1
        try:
            yield
        finally:
            self._promised -= 1

    def append(self, assignment: Assignment) -> None:
        if assignment.uid not in self._waiting:
            self._waiting[assignment.uid] = self._next, assignment
            self._next += 1

    def put_back(self, assignment: Assignment) -> None:
        """Puts back at the front a run that was popped and could not begin."""
        self.remove(assignment.uid)
        self._first -= 1
        self._waiting[assignment.uid] = self._first, assignment
        self._waiting.move_to_end(assignment.uid, last=False)

    def pop(self) -> Assignment | None:
        """The next run, or None."""
        return self.remove(next(iter(self._waiting))) if self._waiting else None

    def remove(self, uid: str) -> Assignment | None:
        number, assignment = self._waiting.pop(uid, (0, None))
        if assignment is None:
            return None
        insort(self._gaps, number)
        front = next(iter(self._waiting.values()))[0] if self._waiting else self._next
        del self._gaps[: bisect_left(self._gaps, front)]
        self._first = front
        return assignment

    def position(self, uid: str) -> int:
        """The number of runs before it."""
        number = self._waiting[uid][0]
        return number - self._first - bisect_left(self._gaps, number)

    def uids(self, limit: int | None = None) -> list[str]:
        """The first ones, up to `limit`."""
        return list(islice(self._waiting, limit))
