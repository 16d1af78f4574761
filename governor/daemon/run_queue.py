"""Runs that wait for a slot: first come, first served, bounded."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from governor.errors import TryAgain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.runs.assignment import Assignment


class RunQueue:
    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        self._waiting: OrderedDict[str, Assignment] = OrderedDict()
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
        self._waiting.setdefault(assignment.uid, assignment)

    def put_back(self, assignment: Assignment) -> None:
        """Puts back at the front a run that was popped and could not begin."""
        self.append(assignment)
        self._waiting.move_to_end(assignment.uid, last=False)

    def pop(self) -> Assignment | None:
        """The next run, or None."""
        return self._waiting.popitem(last=False)[1] if self._waiting else None

    def remove(self, uid: str) -> Assignment | None:
        return self._waiting.pop(uid, None)

    def position(self, uid: str) -> int:
        """The number of runs before it."""
        return list(self._waiting).index(uid)

    def uids(self) -> list[str]:
        return list(self._waiting)
