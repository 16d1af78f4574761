"""One batch: its graph, its runs and their outcomes.

Rules:
1. A task is ready when every run of everything that it depends on has succeeded.
2. The first run of a task that finally does not succeed ends all tasks that depend on it, directly or not, as
   `upstream_failed`; their `cause` is the task at the root, not their direct dependency.
3. Every run of every task gets exactly one record. It is not kept here: a run costs a byte once it has ended, and its
   result as long as a task that depends on it has runs left.
4. All walks are iterative: a chain may be 10,000 long. A pending task costs less than 2 kB, however often it repeats:
   its sub-tasks are made when runners take them.
"""

from __future__ import annotations

import math
from functools import reduce
from itertools import chain, compress
from operator import and_
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from governor.messages import TaskRecord, TaskSpec
from governor.tasks.protocol.wire import Input
from governor.tasks.scheduling.events import (
    BatchSpec,
    SchedulingLimits,
    Shape,
    shape_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from governor.messages import EndedRuns
    from governor.tasks.api import BatchId
    from governor.tasks.scheduling.runner_slots import Job, RunnerSlot

LaneKey: TypeAlias = tuple[int, tuple[float, int], bool, int]
_NO_VALUE: Final = Input()
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


class Batch:
    """The outcomes of a batch, its ready and its blocked tasks. Changes only through its methods."""

    def __init__(self, spec: BatchSpec, *, order: int, limits: SchedulingLimits | None = None) -> None:
        self.spec = msgspec.structs.replace(spec, done=(), ended={}, results={})
        self.order = order
        self.limits = limits
        self.bounds = spec.bounds
        self.nodes = {task.id: TaskNode(self, task) for task in spec.tasks}
        for node in self.nodes.values():
            for name in dict.fromkeys(node.spec.depends_on) if node.spec.depends_on else ():
                other = self.nodes[name]
                if other.dependants is None:
                    other.dependants = []
                other.dependants.append(node)
                other.needed_by += 1
        self.left = sum(task.repeat for task in spec.tasks)
        self.tasks_succeeded = 0
        self.failures = 0
        self.first_failure = ""
        self.end: Literal["tasks_done", "enough", "failures", "stopped"] = "tasks_done"
        self.enough_at: float | None = None
        self.withdrawn = False
        """Whether no task of it becomes ready any more: all that is left is being cancelled."""
        self.held: list[TaskNode] = []
        """Tasks that are ready once the batch is released."""
        self.at_work: dict[int, tuple[RunnerSlot, Job]] = {}
        """Its attempts on runners, by ticket."""
        self.closing: set[SubTask] = set()
        """Sub-tasks on no runner whose runs are being ended, or prepared for a retry, in portions."""
        self._resumed = bool(spec.done or spec.ended)
        for name, ended in spec.ended.items():
            if name in self.nodes:
                self._enter_ended(self.nodes[name], ended, spec.results.get(name))
        for record in spec.done:
            done = self.nodes.get(record.task)
            if done is not None and 0 <= record.run < done.spec.repeat and not done.ended(record.run):
                self._enter(done, record)

    @property
    def id(self) -> BatchId:
        return self.spec.id

    def begin(self) -> tuple[Iterator[TaskRecord], list[TaskNode]]:
        """Ends of runs that can never run because of ended ones, and the tasks that are ready."""
        failed = [(node, node.failure) for node in self.nodes.values() if node.failure is not None]
        ended = chain.from_iterable(self._spread(node, failure) for node, failure in failed)
        ready = [node for node in self.nodes.values() if not node.spec.depends_on and node.left]
        for node in self.nodes.values() if self._resumed else ():
            if node.left == 0 and node.failure is None:
                ready += self._unblock(node)
        return ended, ready

    def inputs(self, task: TaskSpec) -> dict[str, list[Input]]:
        """The results of each dependency, in run order."""
        found: dict[str, list[Input]] = {}
        for name in dict.fromkeys(task.depends_on):
            node = self.nodes[name]
            results = node.results or {}
            found[name] = [results.get(run, _NO_VALUE) for run in range(node.spec.repeat)]
        return found

    def enter(self, node: TaskNode, record: TaskRecord) -> tuple[Iterator[TaskRecord] | None, list[TaskNode]]:
        """Enters the outcome of a run; returns the `upstream_failed` that follow, and the tasks that became ready."""
        has_failed = node.failure is not None
        self._enter(node, record)
        if self.withdrawn or node.dependants is None:
            return None, []
        if record.outcome != "succeeded":
            return (None if has_failed else self._spread(node, record)), []
        return None, self._unblock(node) if node.left == 0 and node.failure is None else []

    def cancel(self, *, error: str) -> Iterator[TaskRecord | None]:
        """Cancels the runs that have not ended, are not on a runner, and are not being ended, one when each is asked for; None
        for each row of others.
        """
        self.withdrawn, self.held = True, []
        kept: dict[TaskNode, bytearray] = {}
        for subtask in (*self.closing, *(job.subtask for _, job in self.at_work.values())):
            marks = kept.setdefault(subtask.node, bytearray(subtask.node.spec.repeat))
            begin, end = subtask.bounds
            marks[begin:end] = b"\1" * (end - begin)
        return chain.from_iterable(self._cancel(node, kept.get(node), error) for node in self.nodes.values())

    def _cancel(self, node: TaskNode, kept: bytearray | None, error: str) -> Iterator[TaskRecord | None]:
        repeat = node.spec.repeat
        run = node.next_unended(0, repeat)
        while run is not None:
            if kept is None or not kept[run]:
                record = TaskRecord(task=node.spec.id, run=run, outcome="cancelled", error=error)
                self._enter(node, record)
                yield record
                run += 1
            else:
                yield None
                run = kept.find(0, run) % (repeat + 1)  # -1 becomes the end
            run = node.next_unended(run, repeat)

    def fail(self, node: TaskNode, begin: int, error: str) -> Iterator[TaskRecord]:
        """Fails the runs of a task from `begin` on, and what depends on it, one when each is asked for."""
        for run in node.each_unended(begin):
            record = TaskRecord(task=node.spec.id, run=run, outcome="failed", error=error)
            followers, _ = self.enter(node, record)
            yield record
            yield from followers or ()

    def subtasks(self, node: TaskNode) -> FreshRuns | SubTask | None:
        """What is to be queued of a ready task; None if all of its runs have ended."""
        repeat = node.spec.repeat
        lane = (-node.spec.priority, self.spec.rank, node.spec.is_eval, self.order)
        if repeat == 1:
            return SubTask(node, (0,), 1, lane) if node.left else None
        size = min(self.spec.split or repeat, repeat)
        count = node.left if size == 1 else node.unended_parts(size)
        if not count:
            return None
        fresh = FreshRuns(node, lane, size, count)
        return fresh.next() if count == 1 else fresh

    def _enter(self, node: TaskNode, record: TaskRecord) -> None:
        node.end(record.run)
        self.left -= 1
        if record.outcome != "succeeded":
            if node.failure is None:
                node.failure = record
                node.results = None
            if not (self.end in {"enough", "failures"} and record.outcome == "cancelled"):
                self._count_failure(record)
        elif node.needed_by and (record.value is not None or record.value_file is not None):
            if node.results is None:
                node.results = {}
            node.results[record.run] = Input(value=record.value, file=record.value_file)
        if node.left == 0:
            self._task_ended(node)

    def _enter_ended(self, node: TaskNode, ended: EndedRuns, results: dict[int, Input] | None) -> None:
        before = node.left
        for begin, end in ended.runs.ranges:
            if begin < node.spec.repeat:
                node.end_range(begin, min(end, node.spec.repeat))
        self.left -= before - node.left
        if ended.failure is not None:
            node.failure = ended.failure
            self._count_failure(ended.failure, number=ended.failures)
        elif node.needed_by:
            node.results = results
        if node.left == 0:
            self._task_ended(node)

    def _count_failure(self, record: TaskRecord, *, number: int = 1) -> None:
        self.failures += number
        if not self.first_failure:
            why = f": {record.error}" if record.error else ""
            self.first_failure = f'task "{record.task}" run {record.run} {record.outcome}{why}'

    def _task_ended(self, node: TaskNode) -> None:
        """All runs of it have their outcome: what it depends on is not needed by it any more."""
        if node.failure is None:
            self.tasks_succeeded += 1
        for name in dict.fromkeys(node.spec.depends_on) if node.spec.depends_on else ():
            other = self.nodes[name]
            other.needed_by -= 1
            if not other.needed_by:
                other.results = None

    def _unblock(self, node: TaskNode) -> list[TaskNode]:
        ready: list[TaskNode] = []
        for dependant in node.dependants or ():
            dependant.blocked_by -= 1
            if dependant.blocked_by == 0 and dependant.left:
                ready.append(dependant)
        return ready

    def _spread(self, node: TaskNode, record: TaskRecord) -> Iterator[TaskRecord]:
        stack = [node]
        while stack:
            for dependant in stack.pop().dependants or ():
                if not dependant.left:
                    continue
                for run in dependant.each_unended():
                    upstream = upstream_failed(dependant.spec.id, record, run=run)
                    self._enter(dependant, upstream)
                    yield upstream
                stack.append(dependant)


def upstream_failed(task: str, record: TaskRecord, *, run: int = 0) -> TaskRecord:
    """The end of a task that depends on the one of this record, which did not succeed."""
    root = record.cause or record.task
    error = f'task "{root}" did not succeed'
    return TaskRecord(task=task, run=run, outcome="upstream_failed", error=error, cause=root)
