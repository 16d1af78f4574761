"""One batch: its graph, its runs and their outcomes.

Rules:
1. A task is ready when every run of everything that it depends on has succeeded.
2. The first run of a task that finally does not succeed ends all tasks that depend on it, directly or not, as
   `upstream_failed`; their `cause` is the task at the root, not their direct dependency.
3. Every run of every task gets exactly one record.
4. All walks are iterative: a chain may be 10,000 long. A pending task costs less than 2 kB.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from governor.messages import TaskRecord, TaskSpec
from governor.tasks.scheduling.events import (
    BatchSpec,
    SchedulingLimits,
    Shape,
    shape_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from governor.tasks.api import BatchId

LaneKey: TypeAlias = tuple[int, tuple[float, int], bool, int]


class TaskNode:
    """A task of the graph."""

    __slots__ = ("batch", "blocked_by", "dependants", "failed", "left", "records", "shape", "spec")

    def __init__(self, batch: Batch, spec: TaskSpec) -> None:
        self.batch = batch
        self.spec = spec
        self.shape: Shape = shape_of(spec)
        self.blocked_by = len(set(spec.depends_on)) if spec.depends_on else 0
        self.left = spec.repeat
        self.dependants: list[TaskNode] | None = None
        self.records: dict[int, TaskRecord] | None = None
        self.failed = False

    def ended(self, run: int) -> bool:
        return self.records is not None and run in self.records


class SubTask(msgspec.Struct, eq=False):
    """A sub-task: runs of one task that one runner executes in a row. `number` is that of its next attempt;
    `missing` are the runs without an outcome.
    """

    node: TaskNode
    missing: tuple[int, ...]
    lane: LaneKey
    number: int = 1
    ready_at: float = 0.0
    misfires: int = 0
    spent: float = 0.0
    """Seconds that its earlier attempts have run."""
    began: float | None = None
    limit: float | None = None
    """Of the current attempt."""
    withdrawn: str = ""
    """Why its runs are cancelled as soon as their runner has stopped them; empty: they are not."""

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

    def done(self, run: int) -> None:
        """The run has its outcome."""
        if len(self.missing) == 1:
            self.missing = ()
        else:
            self.missing = tuple(other for other in self.missing if other != run)


class Batch:
    """The outcomes of a batch, its ready sub-tasks and its blocked tasks. Changes only through its methods."""

    def __init__(self, spec: BatchSpec, *, order: int, limits: SchedulingLimits | None = None) -> None:
        self.spec = spec
        self.order = order
        self.limits = limits
        self.nodes = {task.id: TaskNode(self, task) for task in spec.tasks}
        for node in self.nodes.values():
            for name in dict.fromkeys(node.spec.depends_on):
                other = self.nodes[name]
                if other.dependants is None:
                    other.dependants = []
                other.dependants.append(node)
        self.left = sum(task.repeat for task in spec.tasks)
        self.tasks_succeeded = 0
        self.failures = 0
        self.first_failure = ""
        self.end: Literal["tasks_done", "enough", "stopped"] = "tasks_done"
        self.enough_at: float | None = None
        self.held: list[SubTask] = []
        """Sub-tasks that are ready once the batch is released."""
        for record in spec.done:
            done = self.nodes.get(record.task)
            if done is not None and 0 <= record.run < done.spec.repeat and not done.ended(record.run):
                self._enter(done, record)

    @property
    def id(self) -> BatchId:
        return self.spec.id

    def begin(self) -> tuple[list[TaskRecord], list[SubTask]]:
        """Records of runs that can never run because of `done` ones, and the sub-tasks that are ready."""
        ended: list[TaskRecord] = []
        ready: list[SubTask] = []
        for node in self.nodes.values() if self.failures else ():
            if node.failed and node.records is not None:
                worst = next(record for record in node.records.values() if record.outcome != "succeeded")
                ended += self._spread(node, worst)
        for node in self.nodes.values():
            if not node.spec.depends_on and node.left:
                ready += self._subtasks(node)
        for node in self.nodes.values() if self.spec.done else ():
            if node.left == 0 and not node.failed:
                ready += self._unblock(node)
        return ended, ready

    def inputs(self, task: TaskSpec) -> dict[str, tuple[TaskRecord, ...]]:
        """The records of each dependency, in run order."""
        found: dict[str, tuple[TaskRecord, ...]] = {}
        for name in dict.fromkeys(task.depends_on):
            node = self.nodes[name]
            records = node.records or {}
            found[name] = tuple(records[run] for run in range(node.spec.repeat))
        return found

    def enter(self, node: TaskNode, record: TaskRecord) -> tuple[list[TaskRecord], list[SubTask]]:
        """Enters the outcome of a run; returns the `upstream_failed` that follow, and the sub-tasks that became ready."""
        self._enter(node, record)
        if record.outcome != "succeeded":
            return (self._spread(node, record) if node.dependants else []), []
        if node.left == 0 and not node.failed and node.dependants is not None:
            return [], self._unblock(node)
        return [], []

    def cancel(self, *, keep: Collection[tuple[TaskNode, int]], error: str) -> list[TaskRecord]:
        """Cancels the runs that have not ended; not those in `keep`, which are on a runner."""
        ended: list[TaskRecord] = []
        for node in self.nodes.values():
            for run in range(node.spec.repeat) if node.left else ():
                if node.ended(run) or (node, run) in keep:
                    continue
                record = TaskRecord(task=node.spec.id, run=run, outcome="cancelled", error=error)
                self._enter(node, record)
                ended.append(record)
        return ended

    def _enter(self, node: TaskNode, record: TaskRecord) -> None:
        if node.records is None:
            node.records = {}
        node.records[record.run] = record
        node.left -= 1
        self.left -= 1
        if record.outcome != "succeeded":
            node.failed = True
            if self.end == "enough" and record.outcome == "cancelled":
                return
            self.failures += 1
            if not self.first_failure:
                why = f": {record.error}" if record.error else ""
                self.first_failure = f'task "{record.task}" run {record.run} {record.outcome}{why}'
        elif node.left == 0 and not node.failed:
            self.tasks_succeeded += 1

    def _subtasks(self, node: TaskNode) -> Iterator[SubTask]:
        repeat = node.spec.repeat
        size = self.spec.split or repeat
        lane = (-node.spec.priority, self.spec.rank, node.spec.is_eval, self.order)
        for base in range(0, repeat, size):
            runs = tuple(run for run in range(base, min(base + size, repeat)) if not node.ended(run))
            if runs:
                yield SubTask(node, runs, lane)

    def _unblock(self, node: TaskNode) -> list[SubTask]:
        ready: list[SubTask] = []
        for dependant in node.dependants or ():
            dependant.blocked_by -= 1
            if dependant.blocked_by == 0 and dependant.left:
                ready += self._subtasks(dependant)
        return ready

    def _spread(self, node: TaskNode, record: TaskRecord) -> list[TaskRecord]:
        ended: list[TaskRecord] = []
        stack = [node]
        while stack:
            for dependant in stack.pop().dependants or ():
                if not dependant.left:
                    continue
                for run in range(dependant.spec.repeat):
                    if not dependant.ended(run):
                        upstream = upstream_failed(dependant.spec.id, record, run=run)
                        self._enter(dependant, upstream)
                        ended.append(upstream)
                stack.append(dependant)
        return ended


def upstream_failed(task: str, record: TaskRecord, *, run: int = 0) -> TaskRecord:
    """The end of a task that depends on the one of this record, which did not succeed."""
    root = record.cause or record.task
    error = f'task "{root}" did not succeed'
    return TaskRecord(task=task, run=run, outcome="upstream_failed", error=error, cause=root)
