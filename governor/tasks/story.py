"""What happens to a task graph (events) and what is to be done about it (effects).

`now` is monotonic time in seconds. A runner is named by a number; a ticket names one dispatch to it, so that news of
an attempt that is over can be told from news of the one in work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from governor.messages import TaskOutcome, TaskRecord, TaskSpec

Shape: TypeAlias = tuple[tuple[str, float], ...]
"""The resources that a runner holds, sorted by name; () for plain tasks, whose runners hold nothing."""


def shape_of(task: TaskSpec) -> Shape:
    return tuple(sorted((name, amount) for name, amount in task.resources.items() if amount))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One execution of one run of a task. `number` counts from 1."""

    ticket: int
    task: TaskSpec
    run: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a successful attempt gave: a small value, or the name of a file below the run's folder."""

    value: Any = None
    value_file: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)


# -- events -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunnerReady:
    runner: int
    now: float


@dataclass(frozen=True, slots=True)
class Importing:
    """The runner took the work and imports its module: the attempt has begun, its running time has not."""

    runner: int
    ticket: int
    now: float


@dataclass(frozen=True, slots=True)
class Started:
    """The callable is about to be called: running time counts from here."""

    runner: int
    ticket: int
    now: float
    pid: int = 0
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The callable returned (`result`) or raised (`error`, one line). `seconds` is the runner's own measure."""

    runner: int
    ticket: int
    now: float
    seconds: float
    result: Result | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class RunnerGone:
    """The runner's process is dead, killed by us or not; `reason` says what is known."""

    runner: int
    now: float
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    now: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel all that has not ended."""

    now: float
    reason: str = ""


Event: TypeAlias = RunnerReady | Importing | Started | Ended | RunnerGone | Tick | Stop

# -- effects ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartRunner:
    """Ends in RunnerReady or RunnerGone."""

    runner: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Ends in Ended or RunnerGone. `inputs` are the records of each dependency in run order."""

    runner: int
    attempt: Attempt
    inputs: dict[str, tuple[TaskRecord, ...]]


@dataclass(frozen=True, slots=True)
class KillRunner:
    """Ends in RunnerGone, once the process and its descendants are seen dead."""

    runner: int
    reason: str


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    attempt: Attempt
    pid: int
    node: str


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """It ended badly and another one follows."""

    attempt: Attempt
    outcome: TaskOutcome
    error: str
    seconds: float


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The one outcome of one run of a task."""

    record: TaskRecord


@dataclass(frozen=True, slots=True)
class GraphEnded:
    """Every run of every task has its outcome. Comes once, as the last effect."""

    end: Literal["tasks_done", "stopped"]
    failures: int
    first_failure: str


Effect: TypeAlias = (
    StartRunner | Dispatch | KillRunner | AttemptStarted | AttemptEnded | RunEnded | GraphEnded
)
