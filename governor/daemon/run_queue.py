"""Runs that wait for a slot: first come, first served, bounded.

Each has a number; the numbers grow from front to back. Those between that wait no more are `_gaps`, so that a position is
found without a walk along the queue. When there are more gaps than runs, all get new numbers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from governor.errors import TryAgain, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from governor.runs.assignment import Waiting


class Rule(Protocol):
    """Holds runs back: each keeps its place, and others pass it."""

    def obstacle(self, run: Waiting) -> str:
        """What a run waits for beside a slot; "" if for nothing: then it may begin."""

    async def settle(self) -> None:
        """Brings it up to date, before a run is taken from the queue."""


class RunQueue:
    def __init__(self, *, limit: int, rules: Sequence[Rule] = ()) -> None:
        self.limit = limit
        self._rules = rules
        self._waiting: OrderedDict[str, tuple[int, Waiting]] = OrderedDict()
        self._first = self._next = 0
        """The numbers of the run at the front, and of the next one at the back."""
        self._gaps: list[int] = []
        self._paused: set[str] = set()
        self._promised = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, uid: str) -> bool:
        return uid in self._waiting

    @contextmanager
    def place(self, runs: int = 1) -> Iterator[None]:
        """Reserves places in the queue while their runs are being recorded: all or none. Raises TryAgain when it has no room for them,
        UsageError when it never has.
        """
        if runs > self.limit:
            raise UsageError(
                f"the queue has room for {self.limit} runs (queue_limit in the daemon's configuration), and these are {runs}"
            )
        queued = len(self._waiting) + self._promised
        if queued + runs > self.limit:
            room = f"{self.limit}" if runs == 1 else f"{queued} of {self.limit}"
            raise TryAgain(f"{room} runs are queued already (queue_limit); submit again when some have ended")
        self._promised += runs
        try:
            yield
        finally:
            self._promised -= runs

    def append(self, run: Waiting) -> None:
        if run.uid not in self._waiting:
            self._waiting[run.uid] = self._next, run
            self._next += 1
            self._note(run)

    def put_back(self, run: Waiting) -> None:
        """Puts back at the front a run that was popped and could not begin."""
        self.remove(run.uid)
        self._first -= 1
        self._waiting[run.uid] = self._first, run
        self._waiting.move_to_end(run.uid, last=False)
        self._note(run)

    def _note(self, run: Waiting) -> None:
        if run.pause is not None:
            self._paused.add(run.uid)

    def first(self) -> Waiting | None:
        """The next run that may begin, which stays in the queue, or None."""
        return next((run for _, run in self._waiting.values() if self.may_begin(run)), None)

    def may_begin(self, run: Waiting) -> bool:
        return run.pause is None and not self.obstacle(run)

    def obstacle(self, run: Waiting) -> str:
        """What the run waits for by the rules; "" if for nothing but a slot."""
        return next((why for rule in self._rules if (why := rule.obstacle(run))), "")

    async def settle(self) -> None:
        """Brings the rules up to date. Raises JournalError."""
        for rule in self._rules:
            await rule.settle()

    def pause(self, uid: str, reason: str | None) -> None:
        """Of a run in the queue, which keeps its place; None ends its pause."""
        number, run = self._waiting[uid]
        self._waiting[uid] = number, replace(run, pause=reason)
        (self._paused.discard if reason is None else self._paused.add)(uid)

    def find(self, uid: str) -> Waiting | None:
        """A run in the queue."""
        return self._waiting[uid][1] if uid in self._waiting else None

    def remove(self, uid: str) -> Waiting | None:
        number, run = self._waiting.pop(uid, (0, None))
        if run is None:
            return None
        self._paused.discard(uid)
        insort(self._gaps, number)
        front = next(iter(self._waiting.values()))[0] if self._waiting else self._next
        del self._gaps[: bisect_left(self._gaps, front)]
        self._first = front
        if len(self._gaps) > len(self._waiting):
            self._number_anew()
        return run

    def _number_anew(self) -> None:
        for number, (uid, (_, run)) in enumerate(self._waiting.items()):
            self._waiting[uid] = number, run
        self._first, self._next = 0, len(self._waiting)
        self._gaps.clear()

    def position(self, uid: str) -> int:
        """The number of runs before it, without those that are paused."""
        number = self._waiting[uid][0]
        paused = sum(self._waiting[each][0] < number for each in self._paused)
        return number - self._first - bisect_left(self._gaps, number) - paused

    def uids(self, limit: int | None = None) -> list[str]:
        """The first ones, up to `limit`."""
        return list(islice(self._waiting, limit))
