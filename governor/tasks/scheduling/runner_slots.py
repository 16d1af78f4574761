"""The runners as the scheduler sees them: slots, by the resources that their runners hold.

Rules:
1. At most as many runners of a shape work at once as its capacity; each has a slot index below it. A runner without a
   slot index is a spare.
2. Plain runners (shape ``()``) hold no resources of Ray and stay warm. Runners that hold resources are killed as soon
   as no sub-task waits for them: others may need the resources.
3. A runner that is being killed keeps its slot index until it has exited; then a spare gets the index.
4. No event walks over all runners: what the core asks for is counted, or stands in a set of its own. A runner in a set is
   found, put in and taken out at once (they are dicts by runner id, in the order of entering).
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from governor.messages import TaskOutcome
    from governor.tasks.scheduling.events import Attempt, Shape
    from governor.tasks.scheduling.task_node import SubTask

START_FAILURES: Final = 3
"""Runners of one shape that may exit in a row before they were ready; then no runner is started for `START_PAUSE`."""
START_PAUSE: Final = 5.0
"""Seconds."""


class Termination(NamedTuple):
    """The outcome that the running attempt gets when it ends, and what it has reported. `granted`: its sub-task gets another attempt
    beyond its retries.
    """

    outcome: TaskOutcome
    error: str
    retry: bool = True
    granted: bool = False
    keep_runner: bool = False
    seconds: float = 0.0
    metrics: dict[str, float] | None = None


class Job(msgspec.Struct, eq=False):
    """An attempt on a runner, and its sub-task.

    `taken`: the runner has reported that it claimed it. `started_at`: start of the attempt's running time; `presumed`
    until the runner reports it. `position` counts the attempt's runs that are over; `failed` are those that failed and
    will be retried. `run` is the current run, since `run_at`; `unannounced` until AttemptStarted is emitted.
    """

    attempt: Attempt
    subtask: SubTask
    taken: bool = False
    presumed: bool = False
    failed: set[int] | None = None
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
    """All runners of one shape. No runner is started before `next_start`.

    Each is `starting`, `idle`, `outgoing` (idle, and to be replaced: it takes pinned work alone), a spare, dying, or at
    work; `wanting` are those whose deadline or replacement asks for a spare.
    """

    capacity: int = 0
    free_indices: list[int] = field(default_factory=list)
    slots: dict[int, RunnerSlot] = field(default_factory=dict)
    starting: dict[int, RunnerSlot] = field(default_factory=dict)
    idle: dict[int, RunnerSlot] = field(default_factory=dict)
    outgoing: dict[int, RunnerSlot] = field(default_factory=dict)
    spares: dict[int, RunnerSlot] = field(default_factory=dict)
    wanting: set[int] = field(default_factory=set)
    by_index: dict[int, RunnerSlot] = field(default_factory=dict)
    freed: set[int] = field(default_factory=set)
    """Indices of slots that became idle since the core last looked; the core looks at plain ones."""
    dying: int = 0
    dying_indexed: int = 0
    """Dying runners with a slot index."""
    failed_starts: int = 0
    next_start: float = 0.0

    def admit(self, slot: RunnerSlot) -> None:
        """Gives a ready runner a slot index, or makes it a spare."""
        slot.state = "idle"
        if slot.index is None and self.free_indices:
            slot.index = heapq.heappop(self.free_indices)
            self.by_index[slot.index] = slot
        if slot.index is None:
            self.spares[slot.runner] = slot
            return
        self.freed.add(slot.index)
        (self.outgoing if slot.replace else self.idle)[slot.runner] = slot

    def take_index(self, slot: RunnerSlot) -> None:
        """Its index is beyond the capacity."""
        if slot.index is not None:
            del self.by_index[slot.index]
            slot.index = None

    def withdraw(self, slot: RunnerSlot) -> None:
        """It takes no work from now on."""
        for group in (self.starting, self.idle, self.outgoing, self.spares):
            group.pop(slot.runner, None)

    def free_index(self, slot_index: int) -> None:
        """Gives the index to a spare, unless it is beyond the capacity by now."""
        del self.by_index[slot_index]
        if slot_index >= self.capacity:
            return
        heapq.heappush(self.free_indices, slot_index)
        if self.spares:
            self.admit(self.spares.popitem()[1])

    def resize(self, capacity: int) -> None:
        self.capacity = capacity
        self.free_indices = [index for index in range(capacity) if index not in self.by_index]
        for group in (self.idle, self.outgoing):
            for slot in [
                slot for slot in group.values() if slot.index is not None and slot.index >= capacity
            ]:
                del group[slot.runner]
                self.take_index(slot)
                self.spares[slot.runner] = slot
        while self.free_indices and self.spares:
            self.admit(self.spares.popitem()[1])


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
        self._replacing: dict[int, RunnerSlot] = {}
        """Runners with `replace`, in the order of the requests."""
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

    def indexed(self) -> dict[int, RunnerSlot]:
        """The plain runners by slot index."""
        return dict(self._shapes[()].by_index)

    def get(self, runner: int) -> RunnerSlot | None:
        return self._slots.get(runner)

    def at_index(self, slot_index: int) -> RunnerSlot | None:
        """The plain runner with this slot index."""
        return self._shapes[()].by_index.get(slot_index)

    def take_freed(self) -> set[int]:
        """Indices of plain slots that became idle since the last call."""
        plain = self._shapes[()]
        freed, plain.freed = plain.freed, set()
        return freed

    def add(self, runner: int, shape: Shape) -> RunnerSlot:
        """Adds a runner that is starting."""
        slot = RunnerSlot(runner, shape)
        of_shape = self._shapes[shape]
        self._slots[runner] = of_shape.slots[runner] = of_shape.starting[runner] = slot
        return slot

    def ready(self, slot: RunnerSlot) -> None:
        of_shape = self._shapes[slot.shape]
        of_shape.failed_starts = 0
        del of_shape.starting[slot.runner]
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

    @property
    def is_starting(self) -> bool:
        """Whether any runner is not ready yet."""
        return any(of_shape.starting for of_shape in self._shapes.values())

    @property
    def is_dying(self) -> bool:
        """Whether any runner is being killed."""
        return any(of_shape.dying for of_shape in self._shapes.values())

    def has_usable(self, shape: Shape) -> bool:
        """Whether a runner of this shape exists that is not dying."""
        of_shape = self._shapes[shape]
        return len(of_shape.slots) > of_shape.dying

    def all_starting(self, shape: Shape) -> bool:
        """Whether all runners of this shape still wait for resources; True for none."""
        of_shape = self._shapes[shape]
        return len(of_shape.slots) == len(of_shape.starting)

    def idle(self, shape: Shape) -> Collection[RunnerSlot]:
        """Runners that can take work and are not to be replaced."""
        return self._shapes[shape].idle.values()

    def last_idle(self, shape: Shape) -> RunnerSlot | None:
        """The one of `idle` that is to be used first: the others may be stopped meanwhile."""
        return next(reversed(self._shapes[shape].idle.values()), None)

    def assign(self, slot: RunnerSlot) -> None:
        of_shape = self._shapes[slot.shape]
        group = of_shape.outgoing if slot.replace else of_shape.idle
        if next(reversed(group)) == slot.runner:
            group.popitem()  # `del` would leave a gap at the end, which `last_idle` had to pass each time
        else:
            del group[slot.runner]
        slot.state = "working"

    def release(self, slot: RunnerSlot) -> None:
        """Its jobs are over: it is idle again, or a spare if its slot index is beyond the capacity."""
        slot.revoking = False
        self.want_spare(slot, wanted=False)
        of_shape = self._shapes[slot.shape]
        if slot.index is not None and slot.index >= of_shape.capacity:
            of_shape.take_index(slot)
        of_shape.admit(slot)

    def mark_dying(self, slot: RunnerSlot) -> None:
        """The runner takes no more work and is about to be killed. Call it once."""
        of_shape = self._shapes[slot.shape]
        of_shape.withdraw(slot)
        slot.state = "dying"
        of_shape.dying += 1
        of_shape.dying_indexed += slot.index is not None

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
        of_shape.wanting.discard(runner)
        self._replacing.pop(runner, None)
        if slot.state == "dying":
            of_shape.dying -= 1
            of_shape.dying_indexed -= slot.index is not None
        if slot.index is not None:
            of_shape.free_index(slot.index)
        return slot

    # -- spares ----------------------------------------------------------------------------------------------

    def want_spare(self, slot: RunnerSlot, *, wanted: bool) -> None:
        """Whether a runner is to be ready in its place, because it may be killed soon."""
        if slot.spare_wanted != wanted:
            slot.spare_wanted = wanted
            self._note_want(slot)

    def mark_replaced(self, slot: RunnerSlot, *, replace: bool) -> None:
        """Whether it is to be killed as soon as there is another runner for its place."""
        of_shape = self._shapes[slot.shape]
        slot.replace = replace
        if replace:
            self._replacing[slot.runner] = slot
            if of_shape.idle.pop(slot.runner, None) is not None:
                of_shape.outgoing[slot.runner] = slot
        else:
            self._replacing.pop(slot.runner, None)
        self._note_want(slot)

    def next_replaced(self) -> RunnerSlot | None:
        """The runner whose replacement was asked for first."""
        return next(iter(self._replacing.values()), None)

    def _note_want(self, slot: RunnerSlot) -> None:
        wanting = self._shapes[slot.shape].wanting
        if slot.spare_wanted or slot.replace:
            wanting.add(slot.runner)
        else:
            wanting.discard(slot.runner)

    def has_spare(self, shape: Shape) -> bool:
        """Whether there are more ready spares than dying runners whose slots need one."""
        of_shape = self._shapes[shape]
        return len(of_shape.spares) > of_shape.dying_indexed

    # -- how many --------------------------------------------------------------------------------------------

    def dying(self, shape: Shape) -> int:
        return self._shapes[shape].dying

    def scale_up(self, shape: Shape, *, waiting: int, now: float) -> list[int]:
        """Numbers of new runners to start, so that waiting sub-tasks get one as soon as the capacity allows."""
        of_shape = self._shapes[shape]
        if self.is_closed or now < of_shape.next_start:
            return []
        if self.keep_warm and not shape and not of_shape.failed_starts:
            waiting = max(waiting, of_shape.capacity)
        idle = len(of_shape.idle) + len(of_shape.outgoing)
        wants_spare = not shape and bool(of_shape.wanting)
        if waiting <= idle and not wants_spare:
            return []
        coming = len(of_shape.starting) + idle + len(of_shape.spares)
        active = len(of_shape.slots) - coming
        number = max(0, min(waiting, of_shape.capacity - active) - coming)
        if wants_spare and not (number or of_shape.starting or of_shape.spares):
            number = 1
        new = [next(self._ids) for _ in range(number)]
        for runner in new:
            self.add(runner, shape)
        return new

    def scale_down(self, shape: Shape, *, waiting: int) -> list[RunnerSlot]:
        """Marks runners with resources that no sub-task waits for, and spares beyond the first, as dying; returns them."""
        of_shape = self._shapes[shape]
        if not shape:
            over = [*of_shape.spares.values()][1:] if len(of_shape.spares) > 1 else []
        elif waiting:
            return []
        else:
            over = [*of_shape.starting.values(), *of_shape.idle.values()]
        for slot in over:
            self.mark_dying(slot)
        return over
