"""Runs that wait for a slot, bounded: those of a higher priority first, of one priority first come, first served.

The runs of one priority are a `_Lane`. Each has a number there; the numbers grow from front to back. Those between that wait no more
are gaps, so that a position is found without a walk along the queue. When there are more gaps than runs, all get new numbers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from governor.errors import TryAgain, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from governor.runs.assignment import Owner, Waiting


class Rule(Protocol):
    """Holds runs back: each keeps its place, and others pass it."""

    def obstacle(self, run: Waiting) -> str:
        """What a run waits for beside a slot; "" if for nothing: then it may begin."""

    async def settle(self) -> None:
        """Brings it up to date, before a run is taken from the queue."""


class _Lane:
    """The runs of one priority."""

    def __init__(self) -> None:
        self.runs: OrderedDict[str, Waiting] = OrderedDict()
        self.paused: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._first = self._next = 0
        """The numbers of the run at the front, and of the next one at the back."""
        self._gaps: list[int] = []

    def append(self, run: Waiting) -> None:
        self._numbers[run.uid] = self._next
        self._next += 1
        self.set(run)

    def put_back(self, run: Waiting) -> None:
        """At the front."""
        self._first -= 1
        self._numbers[run.uid] = self._first
        self.set(run)
        self.runs.move_to_end(run.uid, last=False)

    def set(self, run: Waiting) -> None:
        """A run that keeps its place if it has one."""
        self.runs[run.uid] = run
        (self.paused.discard if run.pause is None else self.paused.add)(run.uid)

    def remove(self, uid: str) -> None:
        del self.runs[uid]
        self.paused.discard(uid)
        insort(self._gaps, self._numbers.pop(uid))
        front = self._numbers[next(iter(self.runs))] if self.runs else self._next
        del self._gaps[: bisect_left(self._gaps, front)]
        self._first = front
        if len(self._gaps) > len(self.runs):
            self._number_anew()

    def _number_anew(self) -> None:
        self._numbers = {uid: number for number, uid in enumerate(self.runs)}
        self._first, self._next = 0, len(self.runs)
        self._gaps.clear()

    def position(self, uid: str) -> int:
        """The number of runs before it, without those that are paused."""
        number = self._numbers[uid]
        paused = sum(self._numbers[each] < number for each in self.paused)
        return number - self._first - bisect_left(self._gaps, number) - paused

    @property
    def unpaused(self) -> int:
        return len(self.runs) - len(self.paused)


class RunQueue:
    def __init__(self, *, limit: int, rules: Sequence[Rule] = ()) -> None:
        self.limit = limit
        self.owner_limit: int | None = None
        """Runs of one owner that may wait; None: no such bound."""
        self.rules = [*rules]
        self.changes = 0
        """Grows with each change."""
        self._lanes: dict[int, _Lane] = {}
        """By priority, the highest one first."""
        self._priorities: dict[str, int] = {}
        self._owned: Counter[Owner | None] = Counter()
        """Runs by owner, and places that are promised."""
        self._promised = 0

    def __len__(self) -> int:
        return len(self._priorities)

    def __contains__(self, uid: str) -> bool:
        return uid in self._priorities

    def __iter__(self) -> Iterator[Waiting]:
        """From front to back."""
        for lane in self._lanes.values():
            yield from lane.runs.values()

    @contextmanager
    def place(self, runs: int = 1, *, owner: Owner | None = None) -> Iterator[None]:
        """Reserves places in the queue while their runs are being recorded: all or none. Raises TryAgain when it has no room for them,
        or their `owner` has too many there, UsageError when it never has.
        """
        if runs > self.limit:
            raise UsageError(
                f"the queue has room for {self.limit} runs (queue_limit in the daemon's configuration), and these are {runs}"
            )
        queued = len(self) + self._promised
        if queued + runs > self.limit:
            room = f"{self.limit}" if runs == 1 else f"{queued} of {self.limit}"
            raise TryAgain(f"{room} runs are queued already (queue_limit); submit again when some have ended")
        self._require_owner(runs, owner)
        self._promised += runs
        self._owned[owner] += runs
        try:
            yield
        finally:
            self._promised -= runs
            self._owned[owner] -= runs

    def _require_owner(self, runs: int, owner: Owner | None) -> None:
        most, queued = self.owner_limit, self._owned[owner]
        if most is None or owner is None or queued + runs <= most:
            return
        told = f"owners.queued of {most} runs for each user"
        if runs > most:
            raise UsageError(
                f"these are {runs} runs, and there is a bound: {told}, in the daemon's configuration"
            )
        raise TryAgain(
            f"user {owner} has {queued} queued runs, {told} in the daemon's configuration; submit again when some have begun"
        )

    def append(self, run: Waiting) -> None:
        if run.uid not in self:
            self._lane(run).append(run)

    def put_back(self, run: Waiting) -> None:
        """Puts back at the front of its priority a run that was popped and could not begin."""
        self.remove(run.uid)
        self._lane(run).put_back(run)

    def _lane(self, run: Waiting) -> _Lane:
        """That of a run that is new."""
        self.changes += 1
        self._priorities[run.uid] = run.priority
        self._owned[run.owner] += 1
        if run.priority not in self._lanes:
            self._lanes[run.priority] = _Lane()
            self._lanes = dict(sorted(self._lanes.items(), reverse=True))
        return self._lanes[run.priority]

    def first(self) -> Waiting | None:
        """The next run that may begin, which stays in the queue, or None."""
        return next((run for run in self if self.may_begin(run)), None)

    def may_begin(self, run: Waiting) -> bool:
        return run.pause is None and not self.obstacle(run)

    def obstacle(self, run: Waiting, *, beside: Rule | None = None) -> str:
        """What the run waits for by the rules, `beside` one of them; "" if for nothing but a slot."""
        rules = (rule for rule in self.rules if rule is not beside)
        return next((why for rule in rules if (why := rule.obstacle(run))), "")

    async def settle(self) -> None:
        """Brings the rules up to date. Raises JournalError."""
        for rule in self.rules:
            await rule.settle()

    def pause(self, uid: str, reason: str | None) -> None:
        """Of a run in the queue, which keeps its place; None ends its pause."""
        self.set(replace(self._lanes[self._priorities[uid]].runs[uid], pause=reason))

    def set(self, run: Waiting) -> None:
        """A run in the queue is changed: it keeps its place, or goes behind the others of its new priority."""
        self.changes += 1
        if self._priorities[run.uid] == run.priority:
            self._lanes[run.priority].set(run)
        else:
            self.remove(run.uid)
            self._lane(run).append(run)

    def find(self, uid: str) -> Waiting | None:
        """A run in the queue."""
        return self._lanes[self._priorities[uid]].runs[uid] if uid in self else None

    def remove(self, uid: str) -> Waiting | None:
        if (run := self.find(uid)) is None:
            return None
        self.changes += 1
        priority = self._priorities.pop(uid)
        lane = self._lanes[priority]
        lane.remove(uid)
        if not lane.runs:
            del self._lanes[priority]
        self._owned[run.owner] -= 1
        return run

    def position(self, uid: str) -> int:
        """The number of runs before it, without those that are paused."""
        priority = self._priorities[uid]
        before = sum(lane.unpaused for each, lane in self._lanes.items() if each > priority)
        return before + self._lanes[priority].position(uid)

    def uids(self, limit: int | None = None) -> list[str]:
        """The first ones, up to `limit`."""
        return [run.uid for run in islice(self, limit)]
