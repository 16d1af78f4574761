"""What happens to tasks (events) and what is to be done about it (effects).

`now` and `at` are monotonic seconds of the driver's clock. A runner is named by a number; a ticket names one attempt on
it, so that news of an attempt that is over can be told from news of the one in work. What runners say are the
documents of `wire.py` as they came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.messages import TaskOutcome, TaskRecord, TaskSpec
    from governor.tasks.api import BatchId
    from governor.tasks.protocol.wire import Begun, Loading, Over

Shape: TypeAlias = tuple[tuple[str, float], ...]
"""The resources that a runner holds, sorted by name; () for plain tasks, whose runners hold nothing."""

WaitingState: TypeAlias = Literal["blocked", "queued", "sent", "importing", "running", "ending"]


def shape_of(task: TaskSpec) -> Shape:
    if not task.resources:
        return ()
    return tuple(sorted((name, amount) for name, amount in task.resources.items() if amount))


class BatchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that are submitted together.

    `done` are records of runs that ended earlier: they count, and are not run again. `split`: runs of a task that one
    sub-task holds at most (None: all of them). With `min_num`, what is left is cancelled once so many tasks have
    succeeded and `wait_after_min` seconds have passed. `pin` is the one place that may work on it. `rank` orders
    batches: the smaller one goes first. `name` is what its tasks are told, None: the id.
    `grace`: seconds from the cancellation of an attempt to the death of its runner; None: the engine's.
    `budget`: seconds that all attempts of a sub-task may run together; None: no limit.
    """

    id: BatchId
    tasks: tuple[TaskSpec, ...]
    done: tuple[TaskRecord, ...] = ()
    split: int | None = None
    min_num: int | None = None
    wait_after_min: float = 0.0
    pin: int | None = None
    rank: tuple[float, int] = (0.0, 0)
    name: BatchId | None = None
    grace: float | None = None
    budget: float | None = None
    payload_inline: bool = True
    folder: str = "results"


class SchedulingLimits(Protocol):
    """The dynamic time-out of training tasks (`durations.Durations`)."""

    def limit(self, timeout: float | None = None) -> float | None:
        """What bounds an attempt that is about to start, in seconds."""

    def observe(self, step: BatchId, seconds: float, is_eval: bool) -> None:  # noqa: FBT001  # as Durations has it
        """A sub-task has ended, or was stopped."""

    def step_done(self, step: BatchId) -> None:
        """All of a batch was observed."""


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One execution of the missing `runs` of a sub-task. `number` counts from 1; `limit` bounds it in seconds."""

    ticket: int
    batch: BatchId
    task: TaskSpec
    runs: tuple[int, ...]
    number: int
    limit: float | None


# -- events -------------------------------------------------------------------------------------------------


class _Event(msgspec.Struct, frozen=True, gc=False):
    """Root of all of them."""


class BatchSubmitted(_Event, frozen=True):
    """A batch whose graph is free of faults, under an id that no living batch has. `held`: nothing of it is dispatched
    before `Released`.
    """

    batch: BatchSpec
    now: float
    limits: SchedulingLimits | None = None
    held: bool = False


class Released(_Event, frozen=True):
    """What a held batch needs is there, or it fails: `error` says why that will never come."""

    batch: BatchId
    now: float
    error: str = ""


class Cancelled(_Event, frozen=True):
    """Whatever has not ended of the batch, or of these tasks of it, is to end as `cancelled`. `gentle`: a runner whose
    task ends within its grace is kept.
    """

    batch: BatchId
    now: float
    reason: str
    tasks: frozenset[str] | None = None
    gentle: bool = False


class RunnerReady(_Event, frozen=True):
    runner: int
    now: float


class RunnerGone(_Event, frozen=True):
    """The runner's process is dead, killed by us or not; `reason` says what is known. `node_lost`: its node is gone, so
    what it was at is done again without counting as an attempt.
    """

    runner: int
    now: float
    reason: str
    node_lost: bool = False


class RunnerReported(_Event, frozen=True):
    """What a runner has told since the last time, in order."""

    runner: int
    messages: Sequence[Loading | Begun | Over]
    now: float


class Revoked(_Event, frozen=True):
    """These attempts were taken back: their runner will never begin them."""

    runner: int
    tickets: tuple[int, ...]
    now: float


class Replaced(_Event, frozen=True):
    """Somebody wants a new runner on this place."""

    slot_index: int
    now: float


class Resized(_Event, frozen=True):
    """Nodes came or went: so many runners of each shape may work at once; for 0, the reason why."""

    slots: dict[Shape, int]
    why_never: dict[Shape, str]
    now: float


class Tick(_Event, frozen=True):
    now: float


Event: TypeAlias = (
    BatchSubmitted
    | Released
    | Cancelled
    | RunnerReady
    | RunnerGone
    | RunnerReported
    | Revoked
    | Replaced
    | Resized
    | Tick
)

# -- effects ------------------------------------------------------------------------------------------------


class _Effect(msgspec.Struct, frozen=True, gc=False):
    """Root of all of them."""


class StartRunner(_Effect, frozen=True):
    """Ends in RunnerReady or RunnerGone."""

    runner: int
    shape: Shape


class Dispatch(_Effect, frozen=True):
    """Work for an idle runner, to be done in this order. `slot_index` is the runner's own, from 0."""

    runner: int
    slot_index: int
    attempts: tuple[Attempt, ...]


class Revoke(_Effect, frozen=True):
    """Take back what the runner has not begun. Ends in Revoked."""

    runner: int


class CancelAttempt(_Effect, frozen=True):
    """Take back what it has not begun, then ask this attempt to end, if it still is in work."""

    runner: int
    ticket: int


class KillRunner(_Effect, frozen=True):
    """Ends in RunnerGone, once the process and its descendants are seen dead."""

    runner: int
    reason: str


class AttemptStarted(_Effect, frozen=True):
    """A run of user code has begun, and has not ended in the same breath."""

    attempt: Attempt
    run: int
    runner: int
    at: float


class AttemptEnded(_Effect, frozen=True):
    """A run ended badly and is tried again."""

    attempt: Attempt
    run: int
    outcome: TaskOutcome
    error: str
    seconds: float


class RunEnded(_Effect, frozen=True):
    """The one outcome of one run of a task."""

    batch: BatchId
    record: TaskRecord
    payload: bytes = b""


class BatchEnded(_Effect, frozen=True):
    """Every run of every task has its outcome. Comes once, as the last effect of its batch.

    `end` is ``tasks_done``, ``enough`` (`min_num` were) or ``stopped`` (it was cancelled). `failures` counts the runs
    that did not succeed, without those that were cancelled because there were enough.
    """

    batch: BatchId
    end: Literal["tasks_done", "enough", "stopped"]
    failures: int
    first_failure: str


Effect: TypeAlias = (
    StartRunner
    | Dispatch
    | Revoke
    | CancelAttempt
    | KillRunner
    | AttemptStarted
    | AttemptEnded
    | RunEnded
    | BatchEnded
)


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """What one task, or some runs of it, wait for: a row of `explain`. Times are monotonic seconds of the driver."""

    task: str
    runs: tuple[int, ...]
    state: WaitingState
    why: str
    runner: int | None = None
    slot_index: int | None = None
    attempt: int = 0
    since: float | None = None
    until: float | None = None
