"""A task of a batch, and the sub-tasks that its runs are split into."""

from __future__ import annotations

import math
from functools import reduce
from itertools import compress
from operator import and_
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from governor.tasks.scheduling.events import Shape, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from governor.messages import TaskRecord, TaskSpec
    from governor.tasks.protocol.wire import Input
    from governor.tasks.scheduling.batch import Batch

LaneKey: TypeAlias = tuple[int, tuple[float, int], bool, int]
_NOT: Final = bytes.maketrans(b"\0\1", b"\1\0")


class TaskNode:
    """A task of the graph. `left` counts its runs without an outcome, `needed_by` the dependants that have such runs."""

    __slots__ = (
        "_ended",
        "batch",
        "blocked_by",
        "dependants",
        "failure",
        "left",
        "needed_by",
        "results",
        "shape",
        "spec",
        "withdrawn",
    )

    def __init__(self, batch: Batch, spec: TaskSpec) -> None:
        self.batch = batch
        self.spec = spec
        self.shape: Shape = shape_of(spec)
        self.blocked_by = len(set(spec.depends_on)) if spec.depends_on else 0
        self.left = spec.repeat
        self.dependants: list[TaskNode] | None = None
        self.needed_by = 0
        self.results: dict[int, Input] | None = None
        """Of runs that succeeded with a value, while there are dependants that need them."""
        self.failure: TaskRecord | None = None
        """Of its first run that did not succeed."""
        self.withdrawn = False
        """Whether no further run of it begins: those that are left are being cancelled."""
        self._ended: bytearray | None = None
        """A byte for each run, 1 once it has its outcome; None while `left` tells it."""

    def ended(self, run: int) -> bool:
        return not self.left or (self._ended is not None and self._ended[run] == 1)

    def end(self, run: int) -> None:
        if self.spec.repeat > 1:
            if self._ended is None:
                self._ended = bytearray(self.spec.repeat)
            self._ended[run] = 1
        self.left -= 1

    def end_range(self, begin: int, end: int) -> None:
        """Runs of which none has ended yet."""
        if self._ended is None:
            self._ended = bytearray(self.spec.repeat)
        self._ended[begin:end] = b"\1" * (end - begin)
        self.left -= end - begin

    def next_unended(self, begin: int, end: int) -> int | None:
        """The first run from `begin` on, below `end`, that has no outcome."""
        if begin >= end or not self.left:
            return None
        if self._ended is None:
            return begin
        found = self._ended.find(0, begin, end)
        return None if found < 0 else found

    def unended(self, begin: int, end: int) -> Sequence[int]:
        """The runs in this range without an outcome."""
        ended = self._ended
        if not self.left:
            return ()
        if ended is None or ended.find(1, begin, end) < 0:
            return range(begin, end)
        return tuple(compress(range(begin, end), ended[begin:end].translate(_NOT)))

    def unended_parts(self, size: int) -> int:
        """How many of the parts of `size` runs each, the last one of fewer, have a run without an outcome."""
        repeat = self.spec.repeat
        if self._ended is None or not self.left:
            return -(-repeat // size) if self.left else 0
        if size * size > repeat:
            parts = range(0, repeat, size)
            return sum(self.next_unended(part, min(part + size, repeat)) is not None for part in parts)
        ended = self._ended + b"\1" * (
            -repeat % size
        )  # a number for each place in a part, of a byte for each part
        whole = reduce(and_, (int.from_bytes(ended[place::size], "little") for place in range(size)))
        return whole.to_bytes(len(ended) // size, "little").count(0)

    def each_unended(self, begin: int = 0, end: int | None = None) -> Iterator[int]:
        """The runs from `begin` on, below `end`, without an outcome, as it is when each is asked for."""
        end = self.spec.repeat if end is None else end
        run = self.next_unended(begin, end)
        while run is not None:
            yield run
            run = self.next_unended(run + 1, end)


class SubTask(msgspec.Struct, eq=False):
    """A sub-task: runs of one task that one runner executes in a row. `runs` are those that had no outcome at the last
    attempt, of which `unended` have none now. `number` is that of its next attempt.
    """

    node: TaskNode
    runs: Sequence[int]
    unended: int
    lane: LaneKey
    number: int = 1
    ready_at: float = 0.0
    misfires: int = 0
    spent: float = 0.0
    """Seconds that its earlier attempts have run."""
    began: float | None = None
    limit: float | None = None
    """Of the current attempt."""
    attempts_of: dict[str, frozenset[int]] | None = None
    """As of `failures_of`."""
    granted: int = 0
    """Attempts beyond its retries, which somebody has asked for."""
    withdrawn: str = ""
    """Why its runs are cancelled as soon as their runner has stopped them; empty: they are not."""

    def failures_of(self, kind: str, number: int) -> int:
        """In how many of its attempts, this one of `number` included, something has failed of that kind."""
        self.attempts_of = self.attempts_of or {}
        self.attempts_of[kind] = self.attempts_of.get(kind, frozenset()) | {number}
        return len(self.attempts_of[kind])

    def left(self, now: float) -> float:
        """Seconds left of its budget. An attempt costs at most its limit: the time that its termination takes is free."""
        budget = self.node.batch.spec.budget
        if budget is None:
            return math.inf
        running = 0.0 if self.began is None else now - self.began
        return budget - self.spent - (running if self.limit is None else min(running, self.limit))

    def spend(self, now: float) -> None:
        """An attempt is over."""
        if self.node.batch.spec.budget is not None:
            self.spent = self.node.batch.spec.budget - self.left(now)

    def has(self, node: TaskNode, run: int | None = None) -> bool:
        """Whether it is of this task, and has this run of it."""
        return self.node is node and (run is None or run in self.runs)

    @property
    def missing(self) -> tuple[int, ...]:
        """The runs without an outcome. Takes as long as the last attempt has runs."""
        if self.unended < len(self.runs):
            self.runs = self.node.unended(*self.bounds)
        return tuple(self.runs)

    @property
    def bounds(self) -> tuple[int, int]:
        """The first of `runs` and the one behind the last. All runs without an outcome between them are of this sub-task."""
        return (self.runs[0], self.runs[-1] + 1) if self.runs else (0, 0)


class FreshRuns(msgspec.Struct, eq=False):
    """The runs of a ready task that are in no sub-task yet: they make `count` sub-tasks of up to `size` runs."""

    node: TaskNode
    lane: LaneKey
    size: int
    count: int
    base: int = 0
    ready_at: float = 0.0

    def has(self, node: TaskNode, run: int) -> bool:
        """As of `SubTask`, for a run without an outcome."""
        return self.node is node and run >= self.base

    def next(self) -> SubTask:
        """The next of the `count` sub-tasks."""
        node = self.node
        first = node.next_unended(self.base, node.spec.repeat)
        if first is None:
            raise IndexError(f'no run of task "{node.spec.id}" is left')
        base = first - first % self.size
        end = self.base = min(base + self.size, node.spec.repeat)
        self.count -= 1
        runs = node.unended(first, end)
        return SubTask(node, runs, len(runs), self.lane, ready_at=self.ready_at)
