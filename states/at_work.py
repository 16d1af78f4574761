"""What Starting and Running share: a crew that may lose members, and the ways out by failure, abort and stop.

A dead conductor is started again while the run's budget lasts. Beyond it, and for an abort, the run is finalized; a
stop of the daemon skips that, since an interrupted run has no outcome yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from states import finalizing, stopping
from states.amounts import amount
from states.base import Answer, Crewed, Dropped, Step
from states.crew import obituary

if TYPE_CHECKING:
    from states.events import (
        AbortRequested,
        ConductorExited,
        ConductorFailed,
        ConductorSilent,
        ConductorStuck,
        DeadlinePassed,
        FolderLost,
        LimitExceeded,
        StopRequested,
    )
    from states.plan import Outcome, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class AtWork(Crewed):
    @property
    def position(self) -> tuple[int, frozenset[Part]]:
        """The phase it is in, or will begin with, and the parts of it that are at work."""
        return self.plan.first_phase, frozenset()

    @property
    def where(self) -> str:
        """For messages: in which part of its life."""
        raise NotImplementedError


def said(state: AtWork, event: ConductorFailed) -> Answer:
    if state.crew.current(event) is None:
        return Dropped(state, "of an earlier incarnation")
    return Step(replace(state, crew=state.crew.said(event.conductor, event.reason)))


def exited(state: AtWork, event: ConductorExited) -> Answer:
    member = state.crew.current(event)
    if member is None:
        return Dropped(state, "of an earlier incarnation")
    crew = state.crew.gone(member.name)
    reason = obituary(member, event)
    restart = crew.restart(
        member.name,
        at=event.at,
        within=state.plan.deadlines.start,
        death=reason,
        forkserver=event.forkserver,
    )
    if restart is not None:
        crew, effects = restart
        return Step(replace(state, crew=crew), effects)
    if state.plan.restarts:
        reason += f" (the budget of {state.plan.restarts} conductor restarts is used up)"
    return finalize(replace(state, crew=crew), outcome="failed", reason=reason, at=event.at)


def silent(state: AtWork, event: ConductorSilent) -> Answer:
    """A process that lives and does nothing is as good as dead: it is replaced as a dead one is."""
    kill = state.crew.kill_silent(event)
    if isinstance(kill, str):
        return Dropped(state, kill)
    crew, effect = kill
    return Step(replace(state, crew=crew), (effect,))


def stuck(state: AtWork, event: ConductorStuck) -> Answer:
    """It had to be replaced and would not die: its successor could meet it, so the run can't go on."""
    member = state.crew.current(event)
    if member is None:
        return Dropped(state, "of an earlier incarnation")
    crew = state.crew.started(member.name, event.pid).stuck(member.name)
    reason = f"conductor {member.name} could not be killed: pid {event.pid} is alive"
    return finalize(replace(state, crew=crew), outcome="failed", reason=reason, at=event.at)


def deadline(state: AtWork, event: DeadlinePassed) -> Answer:
    if event.name == "wall_clock" and state.plan.wall_clock is not None:
        reason = f"limit wall_clock of {state.plan.wall_clock:g} s reached {state.where}"
        return finalize(state, outcome="failed", reason=reason, at=event.at)
    member = state.crew.member(event.conductor)
    if event.name != "restart" or member is None:
        return Dropped(state, f"deadline {event.name} means nothing {state.where}")
    if member.incarnation != event.incarnation or member.standing != "starting":
        return Dropped(state, "it was ready in time")
    crew, kill = state.crew.kill(
        member.name, f"not ready within {state.plan.deadlines.start:g} s (deadlines.start)"
    )
    return Step(replace(state, crew=crew), (kill,))


def limit(state: AtWork, event: LimitExceeded) -> Answer:
    allowed, reached = amount(event.limit, event.value), amount(event.limit, event.reached)
    reason = f"limit {event.limit} of {allowed} exceeded {state.where}: {reached}"
    return finalize(state, outcome="failed", reason=reason, at=event.at)


def folder_lost(state: AtWork, event: FolderLost) -> Answer:
    """What it has written there is gone, and its conductors write on to files without a name."""
    reason = f"the folder {event.path} was removed or replaced {state.where}"
    return finalize(state, outcome="failed", reason=reason, at=event.at)


def abort(state: AtWork, event: AbortRequested) -> Answer:
    return finalize(state, outcome="aborted", reason=event.reason, at=event.at)


def stop(state: AtWork, event: StopRequested) -> Answer:
    return stopping.enter(
        plan=state.plan,
        crew=state.crew,
        outcome=None,
        reason=event.reason,
        shutdown=True,
        at=event.at,
        urgent=event.urgent,
    )


def finalize(state: AtWork, *, outcome: Outcome, reason: str, at: float) -> Step:
    phase, open_parts = state.position
    return finalizing.enter(
        plan=state.plan,
        crew=state.crew,
        outcome=outcome,
        reason=reason,
        at=at,
        phase=phase,
        open_parts=open_parts,
    )
