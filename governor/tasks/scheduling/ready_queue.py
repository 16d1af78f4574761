"""The queue of sub-tasks that wait for a runner, and their order.

Rules:
1. The higher priority first; then the earlier batch (`api.sort_batch_id`), training before evaluation of the same
   step; then in the order of submission.
2. A sub-task that has waited for `age` seconds goes before all younger ones, the longest waiting first: early batches
   cannot starve late ones.
3. A sub-task whose attempt was not counted goes to the front of its lane, a retry to its end.
4. A task that repeats is one entry; its sub-tasks are made when they are taken, or looked at.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from governor.tasks.scheduling.task_node import FreshRuns, SubTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from governor.tasks.scheduling.events import Shape
    from governor.tasks.scheduling.task_node import LaneKey, TaskNode

Entry: TypeAlias = SubTask | FreshRuns


@dataclass(slots=True, eq=False)
class _Lanes:
    """The queue of one shape. A lane holds sub-tasks of one batch and priority; it is never empty. `count` is the number of
    sub-tasks.

    `ages` is a heap of (since when the first sub-task of a lane has waited, lane). An entry may be too early, or belong
    to a removed lane; it is corrected when it reaches the top.
    """

    by_key: dict[LaneKey, deque[Entry]] = field(default_factory=dict)
    order: list[LaneKey] = field(default_factory=list)
    ages: list[tuple[float, LaneKey]] = field(default_factory=list)
    count: int = 0

    def push(self, entry: Entry, *, front: bool) -> None:
        lane = self.by_key.get(entry.lane)
        if lane is None:
            lane = self.by_key[entry.lane] = deque()
            insort(self.order, entry.lane)
            heapq.heappush(self.ages, (entry.ready_at, entry.lane))
        elif front and entry.ready_at < lane[0].ready_at:
            heapq.heappush(self.ages, (entry.ready_at, entry.lane))
        if front:
            lane.appendleft(entry)
        else:
            lane.append(entry)
        self.count += _size(entry)

    def first(self, key: LaneKey) -> SubTask:
        """The first sub-task of a lane."""
        lane = self.by_key[key]
        entry = lane[0]
        if not isinstance(entry, FreshRuns):
            return entry
        subtask = entry.next()
        if entry.count:
            lane.appendleft(subtask)
        else:
            lane[0] = subtask
        return subtask

    def close(self, key: LaneKey) -> None:
        del self.by_key[key]
        del self.order[bisect_left(self.order, key)]
        if not self.order:
            self.ages.clear()

    def oldest(self) -> tuple[float, LaneKey]:
        """The lane whose first sub-task has waited longest, and since when."""
        while True:
            at, key = self.ages[0]
            lane = self.by_key.get(key)
            if lane is None:
                heapq.heappop(self.ages)
            elif lane[0].ready_at != at:
                heapq.heapreplace(self.ages, (lane[0].ready_at, key))
            else:
                return at, key


def _size(entry: Entry) -> int:
    return entry.count if type(entry) is FreshRuns else 1


class ReadyQueue:
    """Sub-tasks by their queue: that of their shape, or of the slot index that they are pinned to."""

    def __init__(self, *, age: float) -> None:
        self._age = age
        self._queues: defaultdict[Shape | int, _Lanes] = defaultdict(_Lanes)
        self._pins: set[int] = set()
        """Slot indices for which sub-tasks wait."""
        self._new_pins: set[int] = set()
        """Slot indices that got a sub-task since the last `take_changed_pins`."""

    def push(self, entry: Entry, now: float) -> None:
        """To the end of its lane."""
        entry.ready_at = now
        self._queue_of(entry).push(entry, front=False)

    def push_front(self, subtask: SubTask) -> None:
        """To the front of its lane; it keeps its age."""
        self._queue_of(subtask).push(subtask, front=True)

    def _queue_of(self, entry: Entry) -> _Lanes:
        pin = entry.node.batch.spec.pin
        if pin is None:
            return self._queues[entry.node.shape]
        self._pins.add(pin)
        self._new_pins.add(pin)
        return self._queues[pin]

    def waiting(self, shape: Shape) -> int:
        """The number of waiting sub-tasks, without the pinned ones."""
        return self._queues[shape].count

    def pins(self) -> list[int]:
        """Slot indices for which sub-tasks wait."""
        return list(self._pins)

    def take_changed_pins(self, freed: set[int]) -> list[int]:
        """Those of `pins` that are in `freed`, or got a sub-task since the last call; ascending."""
        new, self._new_pins = self._new_pins, set()
        return sorted(self._pins & (freed | new)) if self._pins else []

    @property
    def pinned(self) -> int:
        """The number of slot indices for which sub-tasks wait."""
        return len(self._pins)

    def urgency(self, shape: Shape, now: float) -> tuple[int, float, LaneKey]:
        """Sort key of the next sub-task for this shape: the smaller one is more urgent."""
        lanes = self._queues[shape]
        at, key = lanes.oldest()
        return (0, at, key) if now - at >= self._age else (1, 0.0, lanes.order[0])

    def take(self, queue: Shape | int, now: float) -> SubTask | None:
        """The next sub-task for runners of a shape, or for the slot with this index."""
        one = iter((True, False))
        taken = self.take_while(queue, now, lambda _: next(one))
        return taken[0] if taken else None

    def take_while(self, queue: Shape | int, now: float, fits: Callable[[SubTask], bool]) -> list[SubTask]:
        """As `take`, one after the other, up to the first that does not fit, which stays."""
        lanes = self._queues[queue]
        taken: list[SubTask] = []
        while lanes.count:
            key = self._next(lanes, now)
            subtask = lanes.first(key)
            if not fits(subtask):
                break
            taken.append(subtask)
            lane = lanes.by_key[key]
            lane.popleft()
            lanes.count -= 1
            if not lane:
                lanes.close(key)
                self._pin_served(queue, lanes)
        return taken

    def empty(self, queue: Shape | int) -> list[Entry]:
        """Removes all of a queue, and returns it."""
        lanes = self._queues.pop(queue, _Lanes())
        if isinstance(queue, int):
            self._pins.discard(queue)
        return [entry for key in lanes.order for entry in lanes.by_key[key]]

    def since(self, order: int) -> dict[str, float]:
        """Since when the tasks of the batch with this order number have waited."""
        found: dict[str, float] = {}
        for lanes in self._queues.values():
            for entry in (entry for key in lanes.order if key[3] == order for entry in lanes.by_key[key]):
                name = entry.node.spec.id
                found[name] = min(entry.ready_at, found.get(name, entry.ready_at))
        return found

    def drop(self, order: int, queues: Iterable[Shape | int]) -> None:
        """Removes the sub-tasks of the batch with this order number from these queues."""
        for queue in queues:
            lanes = self._queues[queue]
            for key in [key for key in lanes.order if key[3] == order]:
                lanes.count -= sum(map(_size, lanes.by_key[key]))
                lanes.close(key)
            self._pin_served(queue, lanes)

    def drop_task(self, node: TaskNode) -> None:
        """Removes the sub-tasks of one task."""
        pin = node.batch.spec.pin
        queue = node.shape if pin is None else pin
        lanes = self._queues[queue]
        for key in [key for key in lanes.order if key[3] == node.batch.order]:
            lane = lanes.by_key[key]
            lanes.count -= sum(_size(entry) for entry in lane if entry.node is node)
            lanes.by_key[key] = left = deque(entry for entry in lane if entry.node is not node)
            if not left:
                lanes.close(key)
        self._pin_served(queue, lanes)

    def drop_run(self, node: TaskNode, run: int) -> None:
        """Removes the sub-task of a run without an outcome, where each run of its task has one of its own."""
        pin = node.batch.spec.pin
        queue = node.shape if pin is None else pin
        lanes = self._queues[queue]
        for key in [key for key in lanes.order if key[3] == node.batch.order]:
            lane = lanes.by_key[key]
            for entry in lane:
                if entry.has(node, run):
                    lanes.count -= 1
                    if isinstance(entry, FreshRuns) and entry.count > 1:
                        entry.count -= 1
                    else:
                        lane.remove(entry)
                    break
            if not lane:
                lanes.close(key)
        self._pin_served(queue, lanes)

    def _pin_served(self, queue: Shape | int, lanes: _Lanes) -> None:
        if not lanes.count and isinstance(queue, int):
            self._pins.discard(queue)

    def _next(self, lanes: _Lanes, now: float) -> LaneKey:
        first = lanes.order[0]
        if len(lanes.order) == 1:
            return first
        at, oldest = lanes.oldest()
        return oldest if now - at >= self._age else first
