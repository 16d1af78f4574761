"""Who is ready: dependencies, repeats, records and the root cause of what can never run.

Rules:
1. A task is ready when every run of everything that it depends on has succeeded.
2. The first run of a task that ends badly for good ends all that depends on it, at any distance, as
   `upstream_failed`; their `cause` is the task at the root, not the one next to them.
3. All walks are iterative: a chain may be 10,000 long.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from governor.messages import TaskRecord
from governor.tasks.story import Shape, shape_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from governor.messages import TaskSpec


class Ready(NamedTuple):
    """A run of a task that waits for a runner; `number` is that of its next attempt."""

    task: str
    run: int
    number: int


@dataclass(slots=True)
class _Node:
    spec: TaskSpec
    shape: Shape
    blocked_by: int
    left: int
    dependants: list[str] = field(default_factory=list)
    records: dict[int, TaskRecord] = field(default_factory=dict)
    failed: bool = False


class Ledger:
    """What has ended, what is ready, what waits. Changes only through its methods."""

    def __init__(self, *, tasks: Sequence[TaskSpec], done: Iterable[TaskRecord] = ()) -> None:
        self._nodes = {
            task.id: _Node(task, shape_of(task), blocked_by=len(set(task.depends_on)), left=task.repeat)
            for task in tasks
        }
        for task in tasks:
            for name in dict.fromkeys(task.depends_on):
                self._nodes[name].dependants.append(task.id)
        self._ready: dict[Shape, deque[Ready]] = {}
        self.left = sum(node.left for node in self._nodes.values())
        self.failures = 0
        self.first_failure = ""
        for record in done:
            node = self._nodes.get(record.task)
            if node is not None and 0 <= record.run < node.spec.repeat and record.run not in node.records:
                self._enter(node, record)

    def begin(self) -> list[TaskRecord]:
        """Makes ready what waits for nothing; gives what can never run because of the runs done earlier."""
        ended: list[TaskRecord] = []
        for node in self._nodes.values():
            if node.failed:
                worst = next(record for record in node.records.values() if record.outcome != "succeeded")
                ended += self._spread(node, worst)
        for node in self._nodes.values():
            if node.left == 0 and not node.failed:
                self._unblock(node)
        for node in self._nodes.values():
            # what `_unblock` freed stands in the queue already
            if not node.spec.depends_on:
                self._enqueue(node)
        return ended

    def task(self, name: str) -> TaskSpec:
        return self._nodes[name].spec

    def inputs(self, task: TaskSpec) -> dict[str, tuple[TaskRecord, ...]]:
        """The records of each dependency, in run order."""
        return {
            name: tuple(self._nodes[name].records[run] for run in range(self._nodes[name].spec.repeat))
            for name in dict.fromkeys(task.depends_on)
        }

    def waiting_shapes(self) -> list[Shape]:
        return [shape for shape, queue in self._ready.items() if queue]

    def waiting(self, shape: Shape) -> int:
        return len(self._ready.get(shape, ()))

    def take(self, shape: Shape) -> Ready | None:
        """The next run for a runner of this shape, first come first served."""
        queue = self._ready.get(shape)
        return queue.popleft() if queue else None

    def again(self, ready: Ready) -> None:
        """Puts a run back: behind those that wait for their first attempt."""
        self._ready.setdefault(self._nodes[ready.task].shape, deque()).append(ready)

    def end(self, record: TaskRecord) -> list[TaskRecord]:
        """Enters the outcome of a run; gives it and the `upstream_failed` that follow from it."""
        node = self._nodes[record.task]
        self._enter(node, record)
        ended = [record]
        if record.outcome != "succeeded":
            ended += self._spread(node, record)
        elif node.left == 0 and not node.failed:
            self._unblock(node)
        return ended

    def cancel(self, *, keep: Collection[tuple[str, int]], error: str) -> list[TaskRecord]:
        """Ends every run that has not ended, save those in `keep`, whose runner is still to be seen dead."""
        self._ready.clear()
        ended: list[TaskRecord] = []
        for name, node in self._nodes.items():
            for run in range(node.spec.repeat) if node.left else ():
                if run in node.records or (name, run) in keep:
                    continue
                record = TaskRecord(
                    task=name, run=run, outcome="cancelled", attempts=0, seconds=0.0, error=error
                )
                self._enter(node, record)
                ended.append(record)
        return ended

    def _enter(self, node: _Node, record: TaskRecord) -> None:
        node.records[record.run] = record
        node.left -= 1
        self.left -= 1
        if record.outcome != "succeeded":
            node.failed = True
            self.failures += 1
            if not self.first_failure:
                why = f": {record.error}" if record.error else ""
                self.first_failure = f'task "{record.task}" run {record.run} {record.outcome}{why}'

    def _enqueue(self, node: _Node) -> None:
        queue = self._ready.setdefault(node.shape, deque())
        queue.extend(
            Ready(node.spec.id, run, 1) for run in range(node.spec.repeat) if run not in node.records
        )

    def _unblock(self, node: _Node) -> None:
        for name in node.dependants:
            dependant = self._nodes[name]
            dependant.blocked_by -= 1
            if dependant.blocked_by == 0 and dependant.left:
                self._enqueue(dependant)

    def _spread(self, node: _Node, record: TaskRecord) -> list[TaskRecord]:
        root = record.cause or record.task
        error = f'task "{root}" did not succeed'
        ended: list[TaskRecord] = []
        stack = [node]
        while stack:
            for name in stack.pop().dependants:
                dependant = self._nodes[name]
                if not dependant.left:
                    continue
                for run in range(dependant.spec.repeat):
                    if run not in dependant.records:
                        upstream = TaskRecord(
                            task=name,
                            run=run,
                            outcome="upstream_failed",
                            attempts=0,
                            seconds=0.0,
                            error=error,
                            cause=root,
                        )
                        self._enter(dependant, upstream)
                        ended.append(upstream)
                stack.append(dependant)
        return ended
