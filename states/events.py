"""Events of a run, in three families with different rules:

* events of the outside world (exits, time, a stop) have an answer in every state;
* reports of work under way are counted and dropped if they come too late;
* commands are the only ones that can be refused; a refusal changes nothing.

Each carries the uid of its run and `at`, in monotonic seconds. An event of another run is dropped, a command for one
is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias

from states.amounts import Limit, Shared
from states.plan import Outcome, Part, RunPlan, WorkChange

Flow: TypeAlias = Literal["PAUSE", "RESET", "RESTART", "STOP_SIMULATION", "STOP_PHASE", "SHUTDOWN"]
DeadlineName: TypeAlias = Literal["start", "restart", "wall_clock", "close", "finalize", "retry", "stop"]


@dataclass(frozen=True, slots=True)
class Event:
    """`kind` is the stable name in journal and logs."""

    kind: ClassVar[str]
    run: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAssigned(Event):
    """Command: a free slot gets a run from the queue."""

    kind: ClassVar[str] = "run.assigned"
    plan: RunPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRequested(Event):
    """Command: a user wants the run to end as `aborted`."""

    kind: ClassVar[str] = "run.abort_requested"
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRequested(Event):
    """Command: no further episode or task begins until `ContinueRequested`; those that run end. `hard`: the run is interrupted at once,
    and waits in the queue.
    """

    kind: ClassVar[str] = "run.pause_requested"
    reason: str = ""
    hard: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueRequested(Event):
    """Command: ends a pause, of a user or of a condition."""

    kind: ClassVar[str] = "run.continue_requested"
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkChangeRequested(Event):
    """Command: an `episode`, by its index, or a `task`, by its id, or one run of it (``fit[2]``), of this phase is to end as `cancelled`, or
    to be done again.
    """

    kind: ClassVar[str] = "run.work_change_requested"
    change: WorkChange
    phase: int
    episode: int | None = None
    task: str = ""
    reason: str = ""

    @property
    def part(self) -> Part:
        return "tasks" if self.episode is None else "simulation"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChangeRequested(Event):
    """Command: a run at work gets another plan: other limits, other phases after this one. `renews`: its simulation is begun anew, as of
    its run file, once the episodes that are played have ended. `tasks` of this phase have other limits.
    """

    kind: ClassVar[str] = "run.plan_change_requested"
    plan: RunPlan
    renews: bool = False
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(Event):
    """The daemon shuts down; the run is interrupted and continues in the next invocation. `urgent`: no grace."""

    kind: ClassVar[str] = "run.stop_requested"
    reason: str = ""
    urgent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePassed(Event):
    """The time of a `Wake` has come. `conductor` and `incarnation` are for the name ``restart``."""

    kind: ClassVar[str] = "deadline.passed"
    name: DeadlineName
    conductor: str = ""
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class ConductorEvent(Event):
    """Counts only if it is of the conductor's current incarnation, and that has not exited."""

    conductor: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorStarted(ConductorEvent):
    """`ticks` and `boot` distinguish the process from a later one with the same pid."""

    kind: ClassVar[str] = "conductor.started"
    pid: int
    ticks: int
    boot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorReady(ConductorEvent):
    kind: ClassVar[str] = "conductor.ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorFailed(ConductorEvent):
    """Its last error; its exit follows."""

    kind: ClassVar[str] = "conductor.failed"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorExited(ConductorEvent):
    """The process has exited and is reaped. `exit_code` is negative for a signal, None when it never started.
    `forkserver` is the pid of the one whose exit killed it or prevented its start.
    """

    kind: ClassVar[str] = "conductor.exited"
    exit_code: int | None
    reason: str = ""
    forkserver: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorSilent(ConductorEvent):
    """Its process is alive and has not answered for so many `seconds`, more than its current work may take."""

    kind: ClassVar[str] = "conductor.silent"
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorStuck(ConductorEvent):
    """All steps of the kill ladder were taken, and `pid`, the process or a descendant, is alive (uninterruptible
    sleep).
    """

    kind: ClassVar[str] = "conductor.stuck"
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEnded(Event):
    """The simulation or the task graph of a phase is over; `failures` of its episodes or tasks ended badly. `tolerated`: the phase
    bears as many; else `exceeded` may name the bound that was passed.
    """

    kind: ClassVar[str] = "part.ended"
    phase: int
    part: Part
    end: str
    failures: int = 0
    first_failure: str = ""
    tolerated: bool = False
    exceeded: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitExceeded(Event):
    """The run has used more than a limit of the run file allows: `limit` is its name, `value` what it allows, `reached` what
    was counted or measured (bytes of memory and disk). Or what all runs have together runs short, and this run has most of it.
    """

    kind: ClassVar[str] = "limit.exceeded"
    limit: Limit | Shared
    value: int
    reached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLost(Event):
    """A folder that the run works in, of its files or its sockets, was removed or replaced."""

    kind: ClassVar[str] = "folder.lost"
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStalled(Event):
    """The run has made no progress since monotonic second `since`, for as long as its `stall_timeout`."""

    kind: ClassVar[str] = "run.stalled"
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgressResumed(Event):
    """A run that had stalled makes progress again."""

    kind: ClassVar[str] = "run.moved"  # as in existing journals


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRequested(ConductorEvent):
    """A condition of the phase asks for this flow control; `reason` names the condition. `conductors`: those that the phase's
    episodes need, for ``RESTART``.
    """

    kind: ClassVar[str] = "flow.requested"
    phase: int
    flow: Flow
    reason: str
    conductors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFailed(ConductorEvent):
    """The conductor did not accept the command to begin its part."""

    kind: ClassVar[str] = "part.failed"
    phase: int
    part: Part
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultWritten(Event):
    """Outcome and result are durable."""

    kind: ClassVar[str] = "result.written"
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFailed(Event):
    kind: ClassVar[str] = "result.failed"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesRemoved(Event):
    """Sockets and temporary files of the run are gone; `left` names what could not be removed."""

    kind: ClassVar[str] = "traces.removed"
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesGone(Event):
    """Processes that could not be killed have exited, with all their descendants."""

    kind: ClassVar[str] = "processes.gone"
    pids: tuple[int, ...]


EVENTS: Final[tuple[type[Event], ...]] = tuple(
    each
    for each in vars().copy().values()
    if isinstance(each, type) and issubclass(each, Event) and hasattr(each, "kind")
)
"""All classes above with a `kind`."""
COMMANDS: Final[tuple[type[Event], ...]] = (
    RunAssigned,
    AbortRequested,
    PauseRequested,
    ContinueRequested,
    WorkChangeRequested,
    PlanChangeRequested,
)
