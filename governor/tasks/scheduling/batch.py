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

from itertools import chain
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from governor.messages import TaskRecord, TaskSpec
from governor.tasks.protocol.wire import Input
from governor.tasks.scheduling.task_node import FreshRuns, SubTask, TaskNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.messages import EndedRuns
    from governor.tasks.api import BatchId
    from governor.tasks.scheduling.events import (
        BatchSpec,
        SchedulingLimits,
    )
    from governor.tasks.scheduling.runner_slots import Job, RunnerSlot

_NO_VALUE: Final = Input()


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
        kept = self._at_work()
        return chain.from_iterable(self._cancel(node, kept.get(node), error) for node in self.nodes.values())

    def cancel_task(self, node: TaskNode, error: str) -> Iterator[TaskRecord | None]:
        """As `cancel`, for one task, and the ends of those that depend on it."""
        failed = node.failure is not None
        for record in self._cancel(node, self._at_work().get(node), error):
            yield record
            if record is not None and not failed:
                failed = True
                yield from self._spread(node, record)

    def _at_work(self) -> dict[TaskNode, bytearray]:
        """By task, a byte for each run: 1 where it is on a runner, or is being ended."""
        kept: dict[TaskNode, bytearray] = {}
        for subtask in (*self.closing, *(job.subtask for _, job in self.at_work.values())):
            marks = kept.setdefault(subtask.node, bytearray(subtask.node.spec.repeat))
            begin, end = subtask.bounds
            marks[begin:end] = b"\1" * (end - begin)
        return kept

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
        if node.withdrawn:
            return None
        lane = (-node.spec.priority, self.spec.rank, node.spec.is_eval, self.order)
        if node.spec.repeat == 1:
            return SubTask(node, (0,), 1, lane) if node.left else None
        size = self.runs_of_attempt(node)
        count = node.left if size == 1 else node.unended_parts(size)
        if not count:
            return None
        fresh = FreshRuns(node, lane, size, count)
        return fresh.next() if count == 1 else fresh

    def runs_of_attempt(self, node: TaskNode) -> int:
        """How many runs of a task one runner executes in a row, at most."""
        return min(self.spec.split or node.spec.repeat, node.spec.repeat)

    def _enter(self, node: TaskNode, record: TaskRecord) -> None:
        node.end(record.run)
        self.left -= 1
        if record.outcome != "succeeded":
            if node.failure is None:
                node.failure = record
                node.results = None
            given_up = self.end in {"enough", "failures"} and record.outcome == "cancelled"
            if not given_up and record.outcome != "upstream_failed":  # that other one is counted
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
            if ended.failures:
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
