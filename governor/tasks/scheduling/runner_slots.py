"""The runners as the scheduler sees them: seats that start, idle, work and die, by the resources they hold.

Rules:
1. As many runners of a shape work at once as it has places; a runner without a place is a spare.
2. Plain runners (shape ``()``) hold no resources of Ray and stay warm. Runners that hold resources are given back as
   soon as nothing waits for them: others may need the resources.
3. A runner that is being killed keeps its place until it is seen dead; then a spare takes it.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.messages import TaskOutcome
    from governor.tasks.scheduling.batch import SubTask
    from governor.tasks.scheduling.events import Attempt, Shape

START_FAILURES: Final = 3
"""Runners of one shape that may die in a row before they were ready; then starts pause."""
START_PAUSE: Final = 5.0
"""Seconds."""


class Termination(NamedTuple):
    """How the attempt in work ends once it is over."""

    outcome: TaskOutcome
    error: str
    retry: bool = True
    keep_runner: bool = False
    seconds: float = 0.0


class Job(NamedTuple):
    """An attempt on a runner, and the sub-task that it is of."""

    attempt: Attempt
    piece: SubTask


class RunnerSlot:
    """One runner. `jobs[0]` is the attempt in work or the next one, the others wait behind it and can be taken back.

    `taken`: the runner has said that it claimed the first job; `started_at`: running time of the attempt counts from
    then, `presumed` while the runner has not said so; `position` counts the runs of it that are over, `failed` are
    those that failed and will be tried again; `run` is the run in work, since `run_at`, `untold` while nobody has been
    told that it began. `last` is the run in work or the one before: job, number, beginning, end.
    """

    __slots__ = (
        "alarm_at",
        "deadline",
        "doom",
        "failed",
        "jobs",
        "kill_at",
        "last",
        "place",
        "position",
        "presumed",
        "replace",
        "revoking",
        "run",
        "run_at",
        "runner",
        "shape",
        "spare_wanted",
        "started_at",
        "state",
        "taken",
        "untold",
        "waits_since",
    )

    def __init__(self, runner: int, shape: Shape) -> None:
        self.runner = runner
        self.shape = shape
        self.state: Literal["starting", "idle", "working", "ending", "dying"] = "starting"
        self.place: int | None = None
        self.jobs: deque[Job] = deque()
        self.alarm_at: float | None = None
        self.replace = False
        self.last: tuple[Job, int, float, float | None] | None = None
        self.waits_since = 0.0
        self.clear()

    def elapsed(self, now: float) -> float:
        """Seconds that the attempt in work has been running."""
        return 0.0 if self.started_at is None else max(0.0, now - self.started_at)

    def clear(self) -> None:
        """Nothing of the job before is left."""
        self.taken = False
        self.presumed = False
        self.failed: frozenset[int] = frozenset()
        self.started_at: float | None = None
        self.position = 0
        self.run: int | None = None
        self.run_at = 0.0
        self.untold = False
        self.deadline: float | None = None
        self.kill_at: float | None = None
        self.revoking = False
        self.spare_wanted = False
        self.doom: Termination | None = None

    def not_begun(self) -> None:
        """What was presumed was wrong: its user code has not begun."""
        self.presumed = self.untold = False
        self.started_at = self.deadline = self.run = None


class _Shape:
    """All runners of one shape. No runner is started before `next_start`."""

    __slots__ = ("failed_starts", "free_places", "idle", "next_start", "places", "seats", "spares")

    def __init__(self, places: int) -> None:
        self.places = places
        self.free_places = list(range(places))
        self.seats: dict[int, RunnerSlot] = {}
        self.idle: list[RunnerSlot] = []
        self.spares: list[RunnerSlot] = []
        self.failed_starts = 0
        self.next_start = 0.0

    def seated(self, seat: RunnerSlot) -> None:
        """Gives a ready runner a place, or makes it a spare."""
        seat.state = "idle"
        if seat.place is None and self.free_places:
            seat.place = heapq.heappop(self.free_places)
        (self.spares if seat.place is None else self.idle).append(seat)

    def vacate(self, place: int) -> None:
        """A place is free: a spare takes it, if there still is such a place."""
        if place >= self.places:
            return
        heapq.heappush(self.free_places, place)
        if self.spares:
            self.seated(self.spares.pop())

    def resize(self, places: int) -> None:
        self.places = places
        held = {seat.place for seat in self.seats.values()}
        self.free_places = [place for place in range(places) if place not in held]
        for seat in [seat for seat in self.idle if seat.place is not None and seat.place >= places]:
            self.idle.remove(seat)
            seat.place = None
            self.spares.append(seat)
        while self.free_places and self.spares:
            self.seated(self.spares.pop())


def holders(shape: Shape, other: Shape) -> int:
    """How many runners of `shape` hold what one of `other` needs, at most; 0 when they share no resource."""
    held = dict(shape)
    return max((math.ceil(amount / held[name]) for name, amount in other if held.get(name)), default=0)


class RunnerSlots:
    """All runners of one driver."""

    def __init__(self, *, runner_ids: Iterator[int]) -> None:
        self.keeps_warm = False
        """Whether plain places have runners also when nothing waits."""
        self.is_closed = False
        """No runner is started any more."""
        self._ids = runner_ids
        self._seats: dict[int, RunnerSlot] = {}
        self._shapes: dict[Shape, _Shape] = {}

    def open(self, shape: Shape, places: int) -> None:
        """So many runners of this shape may work at once, from now on."""
        known = self._shapes.get(shape)
        if known is None:
            self._shapes[shape] = _Shape(places)
        elif known.places != places:
            known.resize(places)

    def shapes(self) -> list[Shape]:
        return list(self._shapes)

    def knows(self, shape: Shape) -> bool:
        return shape in self._shapes

    def places(self, shape: Shape) -> int:
        return self._shapes[shape].places

    def all(self) -> list[RunnerSlot]:
        return list(self._seats.values())

    def get(self, runner: int) -> RunnerSlot | None:
        return self._seats.get(runner)

    def at_place(self, place: int) -> RunnerSlot | None:
        """The plain runner on this place."""
        plain = self._shapes.get(())
        seats = plain.seats.values() if plain is not None else ()
        return next((seat for seat in seats if seat.place == place), None)

    def adopt(self, runner: int, shape: Shape) -> RunnerSlot:
        """A runner that is on its way."""
        seat = RunnerSlot(runner, shape)
        self._seats[runner] = self._shapes[shape].seats[runner] = seat
        return seat

    def ready(self, seat: RunnerSlot) -> None:
        of_shape = self._shapes[seat.shape]
        of_shape.failed_starts = 0
        of_shape.seated(seat)

    def start_failed(self, shape: Shape, now: float) -> bool:
        """Whether that was one too many: then starts pause."""
        of_shape = self._shapes[shape]
        of_shape.failed_starts += 1
        if of_shape.failed_starts < START_FAILURES:
            return False
        of_shape.next_start = now + START_PAUSE
        return True

    def next_start(self, shape: Shape) -> float:
        """When starts of this shape go on."""
        return self._shapes[shape].next_start

    def lives(self, shape: Shape) -> bool:
        """Whether there is a runner that takes work, or may do so later."""
        return any(seat.state != "dying" for seat in self._shapes[shape].seats.values())

    def lacks(self, shape: Shape) -> bool:
        """Whether all runners of this shape, if there are any, wait for resources."""
        return all(seat.state == "starting" for seat in self._shapes[shape].seats.values())

    def idle(self, shape: Shape) -> list[RunnerSlot]:
        """Those that can take work, the last one to be taken first."""
        return self._shapes[shape].idle

    def occupy(self, seat: RunnerSlot) -> None:
        idle = self._shapes[seat.shape].idle
        if idle[-1] is seat:
            idle.pop()
        else:
            idle.remove(seat)
        seat.state = "working"

    def release(self, seat: RunnerSlot) -> None:
        """Its jobs are over and it lives: it is idle again, unless its place is no more."""
        seat.clear()
        of_shape = self._shapes[seat.shape]
        if seat.place is not None and seat.place >= of_shape.places:
            seat.place = None
        of_shape.seated(seat)

    def dismiss(self, seat: RunnerSlot) -> None:
        """It is to be killed."""
        of_shape = self._shapes[seat.shape]
        for group in (of_shape.idle, of_shape.spares):
            if seat in group:
                group.remove(seat)
        seat.state = "dying"

    def remove(self, runner: int) -> RunnerSlot | None:
        """It is dead: its place is taken by a spare."""
        seat = self._seats.pop(runner, None)
        if seat is None:
            return None
        of_shape = self._shapes[seat.shape]
        del of_shape.seats[runner]
        for group in (of_shape.idle, of_shape.spares):
            if seat in group:
                group.remove(seat)
        if seat.place is not None:
            of_shape.vacate(seat.place)
        return seat

    def has_spare(self, shape: Shape) -> bool:
        """Whether a runner without a place is ready that will not be needed by the places of those who die."""
        of_shape = self._shapes[shape]
        dying = sum(seat.state == "dying" and seat.place is not None for seat in of_shape.seats.values())
        return len(of_shape.spares) > dying

    def dying(self, shape: Shape) -> int:
        return sum(seat.state == "dying" for seat in self._shapes[shape].seats.values())

    def reinforce(self, shape: Shape, *, waiting: int, now: float) -> list[int]:
        """Numbers of new runners to start, so that what waits finds one as soon as places allow."""
        of_shape = self._shapes[shape]
        if self.is_closed or now < of_shape.next_start:
            return []
        if self.keeps_warm and not shape and not of_shape.failed_starts:
            waiting = max(waiting, of_shape.places)
        wants_spare = not shape and any(seat.spare_wanted or seat.replace for seat in of_shape.seats.values())
        if waiting <= len(of_shape.idle) and not wants_spare:
            return []
        starting = sum(seat.state == "starting" for seat in of_shape.seats.values())
        coming = starting + len(of_shape.idle) + len(of_shape.spares)
        active = len(of_shape.seats) - coming
        number = max(0, min(waiting, of_shape.places - active) - coming)
        if wants_spare and not (number or starting or of_shape.spares):
            number = 1
        new = [next(self._ids) for _ in range(number)]
        for runner in new:
            self.adopt(runner, shape)
        return new

    def superfluous(self, shape: Shape, *, waiting: int) -> list[RunnerSlot]:
        """Runners that hold resources for nobody, and spares beyond the first; from now on they are dying."""
        of_shape = self._shapes[shape]
        if not shape:
            over = of_shape.spares[1:]
        elif waiting:
            return []
        else:
            over = [seat for seat in of_shape.seats.values() if seat.state in ("starting", "idle")]
        for seat in over:
            self.dismiss(seat)
        return over
