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
    from states.events import ConductorSilent, ConductorStarted
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
    return Step(replace(state, conductors=state.conductors.started(event.conductor, event.pid)))


def silent(state: RunInWork, event: ConductorSilent) -> Answer:
    """A process that is alive and does not answer is killed: it would neither go on with its work nor end it."""
    if not state.conductors.is_ready(event.conductor):
        return Dropped(state, "a conductor that is not ready has a deadline of its own")
    return kill(state, event.conductor, f"silent for {event.seconds:.0f} s (deadlines.liveness)")


def kill(state: RunInWork, conductor: str, reason: str) -> Step:
    """Kills a conductor that can't work; its exit follows, with this reason."""
    conductors, effect = state.conductors.kill(conductor, reason)
    return Step(replace(state, conductors=conductors), (effect,))
