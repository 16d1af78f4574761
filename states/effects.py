"""The effects that the state machine requests. Each effect, also one that fails, ends in the event that its docstring
names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from states.events import DeadlineName
    from states.plan import Kind, Outcome, Part, WorkChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Root of all effects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorEffect(Effect):
    """For one incarnation of a conductor."""

    conductor: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartConductor(ConductorEffect):
    """Ends in ConductorStarted, then ConductorReady or ConductorExited. `delay` is the back-off in seconds."""

    kind: Kind
    delay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopConductor(ConductorEffect):
    """Terminates from step `first` of the kill ladder on. Ends in ConductorExited, or ConductorStuck."""

    first: Literal["message", "SIGTERM", "SIGKILL"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPart(ConductorEffect):
    """Ends in PartEnded when the work is over, or PartFailed when the conductor did not accept it."""

    phase: int
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePart(ConductorEffect):
    """Tells the conductor to begin nothing further of its part, or, without `paused`, to go on. `ends_flow`: the PAUSE of a condition, which
    is known here, is over, too. No event follows.
    """

    phase: int
    part: Part
    paused: bool
    ends_flow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeWork(ConductorEffect):
    """Tells the conductor to cancel an episode or a task of its part, or to do it again. No event follows but those of that work."""

    phase: int
    part: Part
    change: WorkChange
    episode: int | None
    task: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireConductor(ConductorEffect):
    """Asks it to exit once the episodes that are played have ended. Ends in ConductorExited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTasks(ConductorEffect):
    """Tells the conductor the limits of these tasks of its part, as the run file has them now. No event follows."""

    phase: int
    part: Part
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPart(ConductorEffect):
    """Tells the conductor to end its part: PartEnded with end ``stopped``. The deadline ``close`` bounds it."""

    phase: int
    part: Part
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake(Effect):
    """Ends in DeadlinePassed at monotonic second `at`; a later Wake of the same name and conductor replaces it."""

    name: DeadlineName
    at: float
    conductor: str = ""
    incarnation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginPhase(Effect):
    """For the record: ``phase.started``. No event follows."""

    phase: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPhase(Effect):
    """For the record: ``phase.ended``. No event follows."""

    phase: int
    name: str
    end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult(Effect):
    """Makes outcome and result durable. Ends in ResultWritten or ResultFailed."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTraces(Effect):
    """Removes sockets and temporary files of the run. Ends in TracesRemoved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRun(Effect):
    """For the record, the last of a run: ``run.ended``, or ``run.interrupted`` without outcome. No event follows.

    `stuck` are the pids that could not be killed: the slot is quarantined until they are gone.
    """

    outcome: Outcome | None
    reason: str
    stuck: tuple[int, ...] = ()
