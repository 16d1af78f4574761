"""The base of all states, and the three kinds of answers.

Rules:
1. A state is a frozen dataclass that holds only what it needs.
2. The answer to an event is one of three: a `Step` (next state and effects), `Dropped` (too late, or not about this
   run: counted), `Rejected` (a refused command; nothing changes).
3. `waits_for` tells in one line what the state waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeAlias

if TYPE_CHECKING:
    from states.conductors import ConductorStates
    from states.effects import Effect
    from states.events import ConductorStarted
    from states.plan import RunPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Root of the five states. `name` is what journal, logs and users see."""

    name: ClassVar[str]

    @property
    def run(self) -> RunPlan | None:
        """The plan of the run in work, if there is one."""
        return None

    @property
    def waits_for(self) -> str:
        """What the state waits for, in one line."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInWork(State):
    """A state with a run in work and the conductors of that run."""

    plan: RunPlan
    conductors: ConductorStates

    @property
    def run(self) -> RunPlan:
        return self.plan


@dataclass(frozen=True, slots=True)
class Step:
    """The event was accepted. `cause` is recorded with a transition."""

    state: State
    effects: tuple[Effect, ...] = ()
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The event came too late or does not concern this run; nothing changed."""

    state: State
    why: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The command is refused in this state; nothing changed."""

    state: State
    why: str


Answer: TypeAlias = Step | Dropped | Rejected


def started(state: RunInWork, event: ConductorStarted) -> Answer:
    """In all states with conductors: records the pid. A termination requested meanwhile kills the process."""
    if state.conductors.current(event) is None:
        return Dropped(state, "of an earlier incarnation")
    return Step(replace(state, conductors=state.conductors.started(event.conductor, event.pid)))
