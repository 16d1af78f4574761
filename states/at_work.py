"""The base of Starting and Running: conductors that may exit, and the ways out by failure, abort and stop.

A conductor that exited is started again while the run's restarts last. Beyond that, and for an abort, the run is
finalized; a stop of the daemon skips that, because an interrupted run has no outcome yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from states import base, finalizing, stopping
from states.amounts import amount
from states.base import Answer, Dropped, RunInWork, Step
from states.conductors import exit_reason

if TYPE_CHECKING:
    from states.events import (
        AbortRequested,
        ConductorExited,
        ConductorFailed,
        ConductorStuck,
        DeadlinePassed,
        FolderLost,
        LimitExceeded,
        StopRequested,
    )
    from states.plan import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class AtWork(RunInWork):
    @property
    def position(self) -> tuple[int, frozenset[Part]]:
        """The current or first phase, and its parts that are at work."""
        return self.plan.first_phase, frozenset()

    @property
    def where(self) -> str:
        """For messages: where in the run it is."""
        raise NotImplementedError


def failed(state: AtWork, event: ConductorFailed) -> Answer:
    return Step(replace(state, conductors=state.conductors.with_error(event.conductor, event.reason)))


def exited(state: AtWork, event: ConductorExited) -> Answer:
    name = event.conductor
    reason = exit_reason(state.conductors[name], event)
    conductors = state.conductors.gone(name)
    restart = conductors.restart(
        name,
        at=event.at,
        within=state.plan.deadlines.start,
        last_exit=reason,
        forkserver=event.forkserver,
    )
    if restart is not None:
        conductors, effects = restart
        return Step(replace(state, conductors=conductors), effects)
    if state.plan.restarts:
        reason += f" (the budget of {state.plan.restarts} conductor restarts is used up)"
    return finalizing.enter(
        replace(state, conductors=conductors), outcome="failed", reason=reason, at=event.at
    )


def stuck(state: AtWork, event: ConductorStuck) -> Answer:
    """A conductor that had to be replaced could not be killed: it could interfere with its successor, so the run
    fails.
    """
    state = replace(state, conductors=state.conductors.stuck(event.conductor, event.pid))
    reason = f"conductor {event.conductor} could not be killed: pid {event.pid} is alive"
    return finalizing.enter(state, outcome="failed", reason=reason, at=event.at)


def deadline(state: AtWork, event: DeadlinePassed) -> Answer:
    if event.name == "wall_clock" and state.plan.wall_clock is not None:
        reason = f"limit wall_clock of {state.plan.wall_clock:g} s reached {state.where}"
        return finalizing.enter(state, outcome="failed", reason=reason, at=event.at)
    conductor = state.conductors.find(event.conductor)
    if event.name != "restart" or conductor is None:
        return Dropped(state, f"deadline {event.name} means nothing {state.where}")
    if conductor.incarnation != event.incarnation or conductor.standing != "starting":
        return Dropped(state, "it was ready in time")
    reason = f"not ready within {state.plan.deadlines.start:g} s (deadlines.start)"
    return base.kill(state, conductor.name, reason)


def limit(state: AtWork, event: LimitExceeded) -> Answer:
    allowed, reached = amount(event.limit, event.value), amount(event.limit, event.reached)
    reason = f"limit {event.limit} of {allowed} exceeded {state.where}: {reached}"
    return finalizing.enter(state, outcome="failed", reason=reason, at=event.at)


def folder_lost(state: AtWork, event: FolderLost) -> Answer:
    """Files written there are lost, and conductors continue to write to files without a name."""
    reason = f"the folder {event.path} was removed or replaced {state.where}"
    return finalizing.enter(state, outcome="failed", reason=reason, at=event.at)


def abort(state: AtWork, event: AbortRequested) -> Answer:
    return finalizing.enter(state, outcome="aborted", reason=event.reason, at=event.at)


def stop(state: AtWork, event: StopRequested) -> Answer:
    return stopping.enter(
        state, outcome=None, reason=event.reason, shutdown=True, at=event.at, urgent=event.urgent
    )
