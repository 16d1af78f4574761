"""The queue of sub-tasks that wait for a runner, and their order.

Rules:
1. The higher priority first; then the earlier batch (`api.sort_batch_id`), training before evaluation of the same
   step; then in the order of submission.
2. A sub-task that has waited for `age` seconds goes before all younger ones, the longest waiting first: early batches
   cannot starve late ones.
3. A sub-task whose attempt was not counted goes to the front of its lane, a retry to its end.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from governor.tasks.scheduling.batch import LaneKey, SubTask
    from governor.tasks.scheduling.events import Shape


@dataclass(slots=True, eq=False)
class _Lanes:
    """The queue of one shape. A lane holds sub-tasks of one batch and priority; it is never empty.

    `ages` is a heap of (since when the first sub-task of a lane has waited, lane). An entry may be too early, or belong
    to a removed lane; it is corrected when it reaches the top.
    """

    by_key: dict[LaneKey, deque[SubTask]] = field(default_factory=dict)
    order: list[LaneKey] = field(default_factory=list)
    ages: list[tuple[float, LaneKey]] = field(default_factory=list)
    count: int = 0

    def push(self, subtask: SubTask, *, front: bool) -> None:
        lane = self.by_key.get(subtask.lane)
        if lane is None:
            lane = self.by_key[subtask.lane] = deque()
            insort(self.order, subtask.lane)
            heapq.heappush(self.ages, (subtask.ready_at, subtask.lane))
        elif front and subtask.ready_at < lane[0].ready_at:
            heapq.heappush(self.ages, (subtask.ready_at, subtask.lane))
        if front:
            lane.appendleft(subtask)
        else:
            lane.append(subtask)
        self.count += 1

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


class ReadyQueue:
    """Sub-tasks by their queue: that of their shape, or of the slot index that they are pinned to."""

    def __init__(self, *, age: float) -> None:
        self._age = age
        self._queues: defaultdict[Shape | int, _Lanes] = defaultdict(_Lanes)
        self._pins: set[int] = set()

    def push(self, subtask: SubTask, now: float) -> None:
        """To the end of its lane."""
        subtask.ready_at = now
        self._queue_of(subtask).push(subtask, front=False)

    def push_front(self, subtask: SubTask) -> None:
        """To the front of its lane; it keeps its age."""
        self._queue_of(subtask).push(subtask, front=True)

    def _queue_of(self, subtask: SubTask) -> _Lanes:
        pin = subtask.node.batch.spec.pin
        if pin is None:
            return self._queues[subtask.node.shape]
        self._pins.add(pin)
        return self._queues[pin]

    def waiting(self, shape: Shape) -> int:
        """The number of waiting sub-tasks, without the pinned ones."""
        return self._queues[shape].count

    def pins(self) -> list[int]:
        """Slot indices for which sub-tasks wait."""
        return [slot_index for slot_index in self._pins if self._queues[slot_index].count]

    def urgency(self, shape: Shape, now: float) -> tuple[int, float, LaneKey]:
        """Sort key of the next sub-task for this shape: the smaller one is more urgent."""
        lanes = self._queues[shape]
        at, key = lanes.oldest()
        return (0, at, key) if now - at >= self._age else (1, 0.0, lanes.order[0])

    def peek(self, shape: Shape, now: float) -> SubTask | None:
        """The sub-task that `take` would return."""
        lanes = self._queues[shape]
        return lanes.by_key[self._next(lanes, now)][0] if lanes.count else None

    def take(self, queue: Shape | int, now: float) -> SubTask | None:
        """The next sub-task for runners of a shape, or for the slot with this index."""
        lanes = self._queues[queue]
        if not lanes.count:
            return None
        key = self._next(lanes, now)
        lane = lanes.by_key[key]
        subtask = lane.popleft()
        lanes.count -= 1
        if not lane:
            lanes.close(key)
        return subtask

    def since(self, order: int) -> dict[str, float]:
        """Since when the tasks of the batch with this order number have waited."""
        found: dict[str, float] = {}
        for lanes in self._queues.values():
            for subtask in (
                subtask for key in lanes.order if key[3] == order for subtask in lanes.by_key[key]
            ):
                name = subtask.node.spec.id
                found[name] = min(subtask.ready_at, found.get(name, subtask.ready_at))
        return found

    def drop(self, order: int) -> None:
        """Removes the sub-tasks of the batch with this order number."""
        for lanes in self._queues.values():
            for key in [key for key in lanes.order if key[3] == order]:
                lanes.count -= len(lanes.by_key[key])
                lanes.close(key)

    def _next(self, lanes: _Lanes, now: float) -> LaneKey:
        first = lanes.order[0]
        if len(lanes.order) == 1:
            return first
        at, oldest = lanes.oldest()
        return oldest if now - at >= self._age else first
