"""The runners as the scheduler sees them: seats that start, idle, work and die, by the resources they hold.

Rules:
1. Plain runners (shape ``()``) hold no resources of Ray and stay warm; one spare may stand beside them.
2. Runners that hold resources are given back as soon as nothing waits for them: others may need the resources.
3. A runner that is being killed keeps its slot until it is seen dead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from governor.messages import TaskOutcome
    from governor.tasks.story import Attempt, Ended, Shape

START_FAILURES: Final = 3
"""Runners of one shape that may die in a row before the first of them was ready."""


@dataclass(frozen=True, slots=True)
class Doom:
    """How the attempt on a runner ends once the runner is dead; `ended` when it had finished after all."""

    outcome: TaskOutcome
    error: str
    retry: bool = True
    seconds: float = 0.0
    ended: Ended | None = None


@dataclass(slots=True)
class Seat:
    """One runner. `taken`: it has said that the work arrived; `started_at`: running time counts from then."""

    runner: int
    shape: Shape
    state: Literal["starting", "idle", "working", "dying"]
    attempt: Attempt | None = None
    dispatched_at: float = 0.0
    taken: bool = False
    started_at: float | None = None
    spare_wanted: bool = False
    doom: Doom | None = None


class Crew:
    """All runners of one graph."""

    def __init__(self, *, slots: Mapping[Shape, int], runner_ids: Iterator[int]) -> None:
        self._slots = slots
        self._ids = runner_ids
        self._seats: dict[int, Seat] = {}
        self._by_shape: dict[Shape, dict[int, Seat]] = {}
        self._idle: dict[Shape, list[int]] = {}
        self._failed_starts: dict[Shape, int] = {}

    def open(self, shape: Shape) -> None:
        """Makes the shape known: `shapes` lists it from now on."""
        self._by_shape.setdefault(shape, {})
        self._idle.setdefault(shape, [])

    def seat(self, runner: int, shape: Shape, *, idle: bool) -> None:
        seat = Seat(runner, shape, "idle" if idle else "starting")
        self.open(shape)
        self._seats[runner] = self._by_shape[shape][runner] = seat
        if idle:
            self._idle[shape].append(runner)

    def all(self) -> list[Seat]:
        return list(self._seats.values())

    def shapes(self) -> list[Shape]:
        return list(self._by_shape)

    def at_work(self) -> list[Seat]:
        return [seat for seat in self._seats.values() if seat.state == "working"]

    def working(self, runner: int, ticket: int) -> Seat | None:
        """The seat that has this attempt in work, None when that is over."""
        return self._holding(runner, ticket, "working")

    def doomed(self, runner: int, ticket: int) -> Seat | None:
        """The seat whose attempt ends with its runner's death."""
        return self._holding(runner, ticket, "dying")

    def _holding(self, runner: int, ticket: int, state: str) -> Seat | None:
        seat = self._seats.get(runner)
        if seat is None or seat.state != state or seat.attempt is None or seat.attempt.ticket != ticket:
            return None
        return seat

    def ready(self, runner: int) -> None:
        seat = self._seats.get(runner)
        if seat is not None and seat.state == "starting":
            self._failed_starts.pop(seat.shape, None)
            seat.state = "idle"
            self._idle[seat.shape].append(runner)

    def start_failed(self, shape: Shape) -> bool:
        """Whether that was one too many."""
        self._failed_starts[shape] = self._failed_starts.get(shape, 0) + 1
        return self._failed_starts[shape] >= START_FAILURES

    def free(self, shape: Shape) -> Seat | None:
        """An idle runner, if the shape has a slot for it."""
        idle = self._idle.get(shape)
        if not idle or self._active(shape) >= self._slots.get(shape, 0):
            return None
        return self._seats[idle[-1]]

    def occupy(self, seat: Seat, attempt: Attempt, now: float) -> None:
        self._idle[seat.shape].remove(seat.runner)
        seat.state, seat.attempt, seat.dispatched_at = "working", attempt, now

    def release(self, seat: Seat) -> Attempt:
        """The attempt has ended and the runner lives: it is idle again."""
        attempt = seat.attempt
        assert attempt is not None  # noqa: S101  # only a working seat is released
        fresh = Seat(seat.runner, seat.shape, "idle")
        self._seats[seat.runner] = self._by_shape[seat.shape][seat.runner] = fresh
        self._idle[seat.shape].append(seat.runner)
        return attempt

    def doom(self, seat: Seat, doom: Doom) -> None:
        seat.state, seat.doom = "dying", doom

    def remove(self, runner: int) -> Seat | None:
        seat = self._seats.pop(runner, None)
        if seat is not None:
            del self._by_shape[seat.shape][runner]
            if seat.state == "idle":
                self._idle[seat.shape].remove(runner)
        return seat

    def reinforce(self, shape: Shape, *, waiting: int) -> list[int]:
        """Numbers of new runners to start, so that what waits finds one as soon as slots allow."""
        seats = self._by_shape[shape]
        coming = sum(seat.state in ("starting", "idle") for seat in seats.values())
        wanted = min(waiting, self._slots.get(shape, 0) - self._active(shape))
        if not shape and any(seat.spare_wanted for seat in seats.values()):
            wanted += 1
        new = [next(self._ids) for _ in range(wanted - coming)]
        for runner in new:
            self.seat(runner, shape, idle=False)
        return new

    def superfluous(self, shape: Shape, *, waiting: int) -> list[int]:
        """Runners that hold resources for nobody; from now on they are dying."""
        if not shape or waiting:
            return []
        over = [seat for seat in self._by_shape[shape].values() if seat.state in ("starting", "idle")]
        for seat in over:
            if seat.state == "idle":
                self._idle[shape].remove(seat.runner)
            seat.state = "dying"
        return [seat.runner for seat in over]

    def _active(self, shape: Shape) -> int:
        return sum(seat.state in ("working", "dying") for seat in self._by_shape.get(shape, {}).values())
