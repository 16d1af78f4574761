"""The runners as the scheduler sees them: slots, by the resources that their runners hold.

Rules:
1. At most as many runners of a shape work at once as its capacity; each has a slot index below it. A runner without a
   slot index is a spare.
2. Plain runners (shape ``()``) hold no resources of Ray and stay warm. Runners that hold resources are killed as soon
   as no sub-task waits for them: others may need the resources.
3. A runner that is being killed keeps its slot index until it has exited; then a spare gets the index.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.messages import TaskOutcome
    from governor.tasks.scheduling.batch import SubTask
    from governor.tasks.scheduling.events import Attempt, Shape

START_FAILURES: Final = 3
"""Runners of one shape that may exit in a row before they were ready; then no runner is started for `START_PAUSE`."""
START_PAUSE: Final = 5.0
"""Seconds."""


class Termination(NamedTuple):
    """The outcome that the running attempt gets when it ends."""

    outcome: TaskOutcome
    error: str
    retry: bool = True
    keep_runner: bool = False
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Job:
    """An attempt on a runner, and its sub-task.

    `taken`: the runner has reported that it claimed it. `started_at`: start of the attempt's running time; `presumed`
    until the runner reports it. `position` counts the attempt's runs that are over; `failed` are those that failed and
    will be retried. `run` is the current run, since `run_at`; `unannounced` until AttemptStarted is emitted.
    """

    attempt: Attempt
    subtask: SubTask
    taken: bool = False
    presumed: bool = False
    failed: frozenset[int] = frozenset()
    started_at: float | None = None
    position: int = 0
    run: int | None = None
    run_at: float = 0.0
    unannounced: bool = False
    deadline: float | None = None
    kill_at: float | None = None
    termination: Termination | None = None

    def elapsed(self, now: float) -> float:
        """Seconds that it has been running."""
        return 0.0 if self.started_at is None else max(0.0, now - self.started_at)

    def not_begun(self) -> None:
        """Takes a presumed start back: user code has not begun."""
        self.presumed = self.unannounced = False
        self.started_at = self.deadline = self.run = None


@dataclass(slots=True, eq=False)
class RunnerSlot:
    """One runner. `jobs[0]` is the running attempt or the next one; the others wait behind it and can be taken back.

    `last` is the current run or the one before: job, number, beginning, end. `user_state` are the keys that tasks have set.
    """

    runner: int
    shape: Shape
    state: Literal["starting", "idle", "working", "ending", "dying"] = "starting"
    index: int | None = None
    jobs: deque[Job] = field(default_factory=deque)
    alarm_at: float | None = None
    replace: bool = False
    last: tuple[Job, int, float, float | None] | None = None
    waits_since: float = 0.0
    revoking: bool = False
    spare_wanted: bool = False
    user_state: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _ShapeSlots:
    """All runners of one shape. No runner is started before `next_start`."""

    capacity: int = 0
    free_indices: list[int] = field(default_factory=list)
    slots: dict[int, RunnerSlot] = field(default_factory=dict)
    idle: list[RunnerSlot] = field(default_factory=list)
    spares: list[RunnerSlot] = field(default_factory=list)
    failed_starts: int = 0
    next_start: float = 0.0

    def admit(self, slot: RunnerSlot) -> None:
        """Gives a ready runner a slot index, or makes it a spare."""
        slot.state = "idle"
        if slot.index is None and self.free_indices:
            slot.index = heapq.heappop(self.free_indices)
        (self.spares if slot.index is None else self.idle).append(slot)

    def withdraw(self, slot: RunnerSlot) -> None:
        """It takes no work from now on."""
        for group in (self.idle, self.spares):
            if slot in group:
                group.remove(slot)

    def free_index(self, slot_index: int) -> None:
        """Gives the index to a spare, unless it is beyond the capacity by now."""
        if slot_index >= self.capacity:
            return
        heapq.heappush(self.free_indices, slot_index)
        if self.spares:
            self.admit(self.spares.pop())

    def resize(self, capacity: int) -> None:
        self.capacity = capacity
        held = {slot.index for slot in self.slots.values()}
        self.free_indices = [slot_index for slot_index in range(capacity) if slot_index not in held]
        for slot in [slot for slot in self.idle if slot.index is not None and slot.index >= capacity]:
            self.idle.remove(slot)
            slot.index = None
            self.spares.append(slot)
        while self.free_indices and self.spares:
            self.admit(self.spares.pop())


def holders(shape: Shape, other: Shape) -> int:
    """The most runners of `shape` whose resources one of `other` needs; 0 when they share no resource."""
    held = dict(shape)
    return max((math.ceil(amount / held[name]) for name, amount in other if held.get(name)), default=0)


class RunnerSlots:
    """All runners of one driver."""

    def __init__(self, *, runner_ids: Iterator[int]) -> None:
        self.keep_warm = False
        """Whether each plain slot has a runner even while no sub-task waits."""
        self.is_closed = False
        """Once set, no runner is started."""
        self._ids = runner_ids
        self._slots: dict[int, RunnerSlot] = {}
        self._shapes: defaultdict[Shape, _ShapeSlots] = defaultdict(_ShapeSlots)

    def open(self, shape: Shape, capacity: int) -> None:
        """Sets how many runners of this shape may work at once."""
        if self._shapes[shape].capacity != capacity:
            self._shapes[shape].resize(capacity)

    def shapes(self) -> list[Shape]:
        return list(self._shapes)

    def capacity(self, shape: Shape) -> int:
        return self._shapes[shape].capacity

    def all(self) -> list[RunnerSlot]:
        return list(self._slots.values())

    def get(self, runner: int) -> RunnerSlot | None:
        return self._slots.get(runner)

    def at_index(self, slot_index: int) -> RunnerSlot | None:
        """The plain runner with this slot index."""
        return next((slot for slot in self._shapes[()].slots.values() if slot.index == slot_index), None)

    def add(self, runner: int, shape: Shape) -> RunnerSlot:
        """Adds a runner that is starting."""
        slot = RunnerSlot(runner, shape)
        self._slots[runner] = self._shapes[shape].slots[runner] = slot
        return slot

    def ready(self, slot: RunnerSlot) -> None:
        of_shape = self._shapes[slot.shape]
        of_shape.failed_starts = 0
        of_shape.admit(slot)

    def start_failed(self, shape: Shape, now: float) -> bool:
        """Counts a failed start; True if starts pause from now on."""
        of_shape = self._shapes[shape]
        of_shape.failed_starts += 1
        if of_shape.failed_starts < START_FAILURES:
            return False
        of_shape.next_start = now + START_PAUSE
        return True

    def next_start(self, shape: Shape) -> float:
        """When runners of this shape may be started again."""
        return self._shapes[shape].next_start

    def has_usable(self, shape: Shape) -> bool:
        """Whether a runner of this shape exists that is not dying."""
        return any(slot.state != "dying" for slot in self._shapes[shape].slots.values())

    def all_starting(self, shape: Shape) -> bool:
        """Whether all runners of this shape still wait for resources; True for none."""
        return all(slot.state == "starting" for slot in self._shapes[shape].slots.values())

    def idle(self, shape: Shape) -> list[RunnerSlot]:
        """Runners that can take work; the last one is to be used first."""
        return self._shapes[shape].idle

    def assign(self, slot: RunnerSlot) -> None:
        idle = self._shapes[slot.shape].idle
        if idle[-1] is slot:
            idle.pop()
        else:
            idle.remove(slot)
        slot.state = "working"

    def release(self, slot: RunnerSlot) -> None:
        """Its jobs are over: it is idle again, or a spare if its slot index is beyond the capacity."""
        slot.revoking = slot.spare_wanted = False
        of_shape = self._shapes[slot.shape]
        if slot.index is not None and slot.index >= of_shape.capacity:
            slot.index = None
        of_shape.admit(slot)

    def mark_dying(self, slot: RunnerSlot) -> None:
        """The runner takes no more work and is about to be killed."""
        of_shape = self._shapes[slot.shape]
        of_shape.withdraw(slot)
        slot.state = "dying"

    def remove(self, runner: int) -> RunnerSlot | None:
        """Removes a runner that has exited; a spare gets its slot index."""
        slot = self._slots.pop(runner, None)
        if slot is None:
            return None
        slot.alarm_at = slot.last = (
            None  # an alarm that is still to come has the slot, not the batch of its last job
        )
        of_shape = self._shapes[slot.shape]
        del of_shape.slots[runner]
        of_shape.withdraw(slot)
        if slot.index is not None:
            of_shape.free_index(slot.index)
        return slot

    def has_spare(self, shape: Shape) -> bool:
        """Whether there are more ready spares than dying runners whose slots need one."""
        of_shape = self._shapes[shape]
        dying = sum(slot.state == "dying" and slot.index is not None for slot in of_shape.slots.values())
        return len(of_shape.spares) > dying

    def dying(self, shape: Shape) -> int:
        return sum(slot.state == "dying" for slot in self._shapes[shape].slots.values())

    def scale_up(self, shape: Shape, *, waiting: int, now: float) -> list[int]:
        """Numbers of new runners to start, so that waiting sub-tasks get one as soon as the capacity allows."""
        of_shape = self._shapes[shape]
        if self.is_closed or now < of_shape.next_start:
            return []
        if self.keep_warm and not shape and not of_shape.failed_starts:
            waiting = max(waiting, of_shape.capacity)
        wants_spare = not shape and any(slot.spare_wanted or slot.replace for slot in of_shape.slots.values())
        if waiting <= len(of_shape.idle) and not wants_spare:
            return []
        starting = sum(slot.state == "starting" for slot in of_shape.slots.values())
        coming = starting + len(of_shape.idle) + len(of_shape.spares)
        active = len(of_shape.slots) - coming
        number = max(0, min(waiting, of_shape.capacity - active) - coming)
        if wants_spare and not (number or starting or of_shape.spares):
            number = 1
        new = [next(self._ids) for _ in range(number)]
        for runner in new:
            self.add(runner, shape)
        return new

    def scale_down(self, shape: Shape, *, waiting: int) -> list[RunnerSlot]:
        """Marks runners with resources that no sub-task waits for, and spares beyond the first, as dying; returns them."""
        of_shape = self._shapes[shape]
        if not shape:
            over = of_shape.spares[1:]
        elif waiting:
            return []
        else:
            over = [slot for slot in of_shape.slots.values() if slot.state in ("starting", "idle")]
        for slot in over:
            self.mark_dying(slot)
        return over
