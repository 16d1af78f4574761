"""Starting: all conductors start in parallel; waits until each is ready, under one deadline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from states import at_work, finalizing, running
from states.at_work import AtWork
from states.base import Answer, Dropped, Rejected, Step
from states.conductors import ConductorStates
from states.effects import Effect, StartConductor, Wake

if TYPE_CHECKING:
    from states.events import ConductorReady, DeadlinePassed, RunAssigned
    from states.pristine import Pristine


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting(AtWork):
    name: ClassVar[str] = "starting"

    @property
    def where(self) -> str:
        return "while starting"

    @property
    def missing(self) -> str:
        return f"conductors to be ready: {', '.join(each.name for each in self.conductors.not_ready)}"


def assign(state: Pristine, event: RunAssigned) -> Answer:
    if state.shutdown:
        return Rejected(state, "it is shut down")
    if state.stuck:
        return Rejected(
            state, f"it is quarantined: {state.stuck_pids} could not be killed, and is not gone yet"
        )
    plan = event.plan
    conductors = ConductorStates.of(plan)
    effects: list[Effect] = [Wake(name="start", at=event.at + plan.deadlines.start)]
    state_then = Starting(plan=plan, conductors=conductors, counted_from=event.at - plan.worked)
    effects += at_work.wall_clock(state_then)
    effects += [
        StartConductor(conductor=conductor.name, kind=conductor.kind, incarnation=conductor.incarnation)
        for conductor in conductors.all
    ]
    return Step(state_then, tuple(effects), cause=f"run {plan.name} assigned")


def ready(state: Starting, event: ConductorReady) -> Answer:
    if state.conductors.is_ready(event.conductor):
        return Dropped(state, "it was ready before")
    state = replace(state, conductors=state.conductors.ready(event.conductor, at=event.at))
    if state.conductors.not_ready:
        return Step(state)
    return running.enter(state, phase=state.plan.first_phase, at=event.at, cause="all conductors are ready")


def deadline(state: Starting, event: DeadlinePassed) -> Answer:
    if event.name != "start":
        return at_work.deadline(state, event)
    missing = state.conductors.not_ready
    names = ", ".join(conductor.name for conductor in missing)
    exits = "; ".join(conductor.last_exit for conductor in missing if conductor.last_exit)
    limit = f"{state.plan.deadlines.start:g} s (deadlines.start)"
    reason = f"not ready within {limit}: {names}{exits and f' ({exits})'}"
    return finalizing.enter(state, outcome="failed", reason=reason, at=event.at)
