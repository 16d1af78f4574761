"""What happens to tasks (events) and what is to be done about it (effects).

`now` and `at` are monotonic seconds of the driver's clock. A runner is identified by a number. A ticket identifies one
attempt on it, so that a late message about an attempt that is over is not taken for one about the current attempt.
Messages of runners are the documents of `wire.py`, unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from governor.episodes.rules.failures import FailureBounds
    from governor.messages import EndedRuns, TaskOutcome, TaskRecord, TaskSpec
    from governor.tasks.api import BatchId
    from governor.tasks.protocol.wire import Begun, Input, Loading, Over

Shape: TypeAlias = tuple[tuple[str, float], ...]
"""The resources that a runner holds, sorted by name; () for plain tasks, whose runners hold nothing."""

WaitingState: TypeAlias = Literal["blocked", "queued", "sent", "importing", "running", "ending"]


def shape_of(task: TaskSpec) -> Shape:
    if not task.resources:
        return ()
    return tuple(sorted((name, amount) for name, amount in task.resources.items() if amount))


class BatchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that are submitted together.

    `done` are records of runs that ended earlier: they count, and are not run again. `ended` tells the same of many runs,
    by task; `results` are those of their values that other tasks need, by task and run. `split`: runs of a task that one
    sub-task holds at most (None: all of them). With `min_num`, the remaining tasks are cancelled once so many have
    succeeded and `wait_after_min` seconds have passed. `pin` is the slot index of the only runner that may execute it.
    `rank` orders batches: the smaller one goes first. `name` is the batch id that tasks see; None: `id`.
    `grace`: seconds from the cancellation of an attempt to the SIGKILL of its runner; None: the engine's.
    `bounds`: of its failures; None: there are none.
    `budget`: seconds that all attempts of a sub-task may run together; None: no limit. `keeps_tuples`: as of `WorkItem`.
    """

    id: BatchId
    tasks: tuple[TaskSpec, ...]
    done: tuple[TaskRecord, ...] = ()
    ended: Mapping[str, EndedRuns] = {}
    results: Mapping[str, dict[int, Input]] = {}
    split: int | None = None
    min_num: int | None = None
    wait_after_min: float = 0.0
    pin: int | None = None
    rank: tuple[float, int] = (0.0, 0)
    name: BatchId | None = None
    grace: float | None = None
    bounds: FailureBounds | None = None
    budget: float | None = None
    payload_inline: bool = True
    keeps_tuples: bool = False
    folder: str = "results"

    @property
    def shown_id(self) -> BatchId:
        return self.id if self.name is None else self.name


class SchedulingLimits(Protocol):
    """The dynamic time-out of training tasks (`dynamic_timeout.TimeoutEstimator`)."""

    def limit(self, timeout: float | None = None) -> float | None:
        """Seconds that an attempt about to start may take."""

    def observe(self, step: BatchId, seconds: float, is_eval: bool) -> None:  # noqa: FBT001  # as TimeoutEstimator has it
        """A sub-task took so many seconds until it ended or was stopped."""

    def step_done(self, step: BatchId) -> None:
        """All sub-tasks of a batch were observed."""


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One execution of the missing `runs` of a sub-task. `number` counts from 1; `limit` bounds it in seconds."""

    ticket: int
    batch: BatchId
    task: TaskSpec
    runs: tuple[int, ...]
    number: int
    limit: float | None


# -- events -------------------------------------------------------------------------------------------------


class SchedulerEvent(msgspec.Struct, frozen=True, gc=False):
    """Something that has happened, at `now`."""

    now: float


class BatchSubmitted(SchedulerEvent, frozen=True):
    """A batch whose graph has no faults, under an id that no active batch has. `held`: it is not dispatched before
    `Released`.
    """

    batch: BatchSpec
    limits: SchedulingLimits | None = None
    held: bool = False


class Released(SchedulerEvent, frozen=True):
    """A held batch may be dispatched; with `error`, it fails with this reason instead."""

    batch: BatchId
    error: str = ""


class Cancelled(SchedulerEvent, frozen=True):
    """All runs of the batch that have not ended are to end as `cancelled`. `gentle`: a runner whose task ends within its
    grace is not killed.
    """

    batch: BatchId
    reason: str
    gentle: bool = False


class TaskChanged(SchedulerEvent, frozen=True):
    """A task is to end as `cancelled`; or, with `again`, its attempts on runners are to end, and to be repeated beyond its retries.
    `run`: this run of it alone, where an attempt is one run.
    """

    batch: BatchId
    task: str
    reason: str
    again: bool = False
    run: int | None = None


class TaskLimitsChanged(SchedulerEvent, frozen=True):
    """A task has the time-out and the retries of this one, with the same id; its attempts on runners, too."""

    batch: BatchId
    task: TaskSpec


class RunnerReady(SchedulerEvent, frozen=True):
    runner: int


class RunnerGone(SchedulerEvent, frozen=True):
    """The runner's process has exited, killed by us or not, for `reason`. `node_lost`: its node was lost, so its attempt
    is repeated without being counted.
    """

    runner: int
    reason: str
    node_lost: bool = False


class RunnerReported(SchedulerEvent, frozen=True):
    """Messages of a runner since the last event, in order."""

    runner: int
    messages: Sequence[Loading | Begun | Over]


class Revoked(SchedulerEvent, frozen=True):
    """These attempts were taken back: their runner will not begin them."""

    runner: int
    tickets: tuple[int, ...]


class Replaced(SchedulerEvent, frozen=True):
    """The runner of this slot is to be replaced by a new one."""

    slot_index: int


class Resized(SchedulerEvent, frozen=True):
    """Nodes joined or left: how many runners of each shape may work at once; for 0, the reason."""

    slots: dict[Shape, int]
    why_never: dict[Shape, str]


class Tick(SchedulerEvent, frozen=True):
    """Time has passed."""


# -- effects ------------------------------------------------------------------------------------------------


class SchedulerEffect(msgspec.Struct, frozen=True, gc=False):
    """What is to be done."""


class RunnerEffect(SchedulerEffect, frozen=True):
    """What is to be done with a runner."""

    runner: int


class StartRunner(RunnerEffect, frozen=True):
    """Ends in RunnerReady or RunnerGone."""

    shape: Shape


class Dispatch(RunnerEffect, frozen=True):
    """Attempts for an idle runner, to be executed in this order. `slot_index` is that of the runner, from 0."""

    slot_index: int
    attempts: tuple[Attempt, ...]


class Revoke(RunnerEffect, frozen=True):
    """Take back the attempts that the runner has not begun. Ends in Revoked."""


class CancelAttempt(RunnerEffect, frozen=True):
    """Take back the attempts that the runner has not begun, then cancel this one, if it is still running."""

    ticket: int


class KillRunner(RunnerEffect, frozen=True):
    """Ends in RunnerGone, once the process and its descendants have exited. `is_idle`: it has no attempt."""

    reason: str
    is_idle: bool = False


class AttemptStarted(SchedulerEffect, frozen=True):
    """A run of user code has begun. Not emitted if its end is reported in the same event."""

    attempt: Attempt
    run: int
    runner: int
    at: float


class AttemptEnded(SchedulerEffect, frozen=True):
    """A run did not succeed and will be retried."""

    attempt: Attempt
    run: int
    outcome: TaskOutcome
    error: str
    seconds: float


class AttemptClosed(SchedulerEffect, frozen=True):
    """An attempt was ended from outside. `runs` may have been in work: they may have left files that are half written."""

    attempt: Attempt
    runs: tuple[int, ...]


class RunEnded(SchedulerEffect, frozen=True):
    """The final outcome of one run of a task. Emitted once for each run."""

    batch: BatchId
    record: TaskRecord
    payload: bytes = b""


class BatchEnded(SchedulerEffect, frozen=True):
    """Every run of every task has its outcome. Emitted once, as the last effect of its batch.

    `end` is ``tasks_done``, ``enough`` (`min_num` was reached), ``failures`` (the bound `exceeded` was passed) or ``stopped``
    (it was cancelled). `failures` counts the runs that did not succeed, except those that were cancelled because `min_num` or a
    bound was reached, and those that failed with another task (``upstream_failed``).
    """

    batch: BatchId
    end: Literal["tasks_done", "enough", "failures", "stopped"]
    failures: int
    first_failure: str
    exceeded: str = ""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """What a task, or some of its runs, wait for: a row of `explain`. Times are monotonic seconds of the driver."""

    task: str
    runs: tuple[int, ...]
    state: WaitingState
    why: str
    runner: int | None = None
    slot_index: int | None = None
    attempt: int = 0
    since: float | None = None
    until: float | None = None
