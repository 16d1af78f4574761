"""The base of Starting and Running: conductors that may exit, and the ways out by failure, abort and stop.

A conductor that exited is started again while the run's restarts last. Beyond that, and for an abort, the run is
finalized; a stop of the daemon skips that, because an interrupted run has no outcome yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from states import base, finalizing, stopping
from states.amounts import amount
from states.base import Answer, Dropped, Rejected, RunInWork, Step
from states.conductors import exit_reason
from states.effects import Effect, Wake

if TYPE_CHECKING:
    from states.events import (
        AbortRequested,
        ConductorExited,
        ConductorFailed,
        ConductorStuck,
        ContinueRequested,
        DeadlinePassed,
        FolderLost,
        LimitExceeded,
        PauseRequested,
        PlanChangeRequested,
        StopRequested,
    )
    from states.plan import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Since monotonic second `since`."""

    since: float
    reason: str = ""

    @property
    def why(self) -> str:
        return f": {self.reason}" if self.reason else ""

    def waits_for(self, run: str) -> str:
        """What `run` waits for."""
        return f"`governor continue {run}` (paused{self.why})"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtWork(RunInWork):
    """`pause`: of a user, if there is one; `unbegun`: parts of the phase that it keeps from beginning. `counted_from`: the monotonic
    second from which `wall_clock` counts, so early that earlier work counts too; a pause of a user moves it.
    """

    pause: Pause | None = None
    counted_from: float = 0.0
    unbegun: frozenset[Part] = frozenset()

    @property
    def time_up(self) -> float | None:
        """The monotonic second at which `wall_clock` is used up."""
        return None if self.plan.wall_clock is None else self.counted_from + self.plan.wall_clock

    @property
    def ended(self) -> int:
        """The number of phases that have ended."""
        return self.plan.first_phase

    @property
    def waits_for(self) -> str:
        if self.pause is not None:
            return self.pause.waits_for(self.plan.uid)
        return self.missing

    @property
    def missing(self) -> str:
        """What it waits for by itself."""
        raise NotImplementedError

    @property
    def position(self) -> tuple[int, frozenset[Part]]:
        """The current or first phase, and its parts that are at work."""
        return self.plan.first_phase, frozenset()

    @property
    def where(self) -> str:
        """For messages: where in the run it is."""
        raise NotImplementedError


EARLY_SECONDS: Final = 0.01
"""A timer may be so much too early."""
NOT_PAUSED: Final = "it is not paused"
W = TypeVar("W", bound=AtWork)


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
        if state.pause is not None:
            return Dropped(state, "the clock stands still while the run is paused")
        if state.time_up is not None and event.at < state.time_up - EARLY_SECONDS:
            return Dropped(state, "the clock was set back")
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
    match event.limit:
        case "memory of the service":
            reason = f"the service has {reached} of its {allowed} of memory, and of the runs at work this one has most, {state.where}"
        case "room on the disk":
            reason = f"the disk of all runs has {reached} left ({allowed} are kept free), and of the runs at work this one has taken most, {state.where}"
        case _:
            reason = f"limit {event.limit} of {allowed} exceeded {state.where}: {reached}"
    return finalizing.enter(state, outcome="failed", reason=reason, at=event.at)


def folder_lost(state: AtWork, event: FolderLost) -> Answer:
    """Files written there are lost, and conductors continue to write to files without a name."""
    reason = f"the folder {event.path} was removed or replaced {state.where}"
    return finalizing.enter(state, outcome="failed", reason=reason, at=event.at)


def abort(state: AtWork, event: AbortRequested) -> Answer:
    return finalizing.enter(state, outcome="aborted", reason=event.reason, at=event.at)


def pause(state: AtWork, event: PauseRequested) -> Answer:
    """A hard one is an interruption: the daemon puts the run back into its queue."""
    begun = state.pause or Pause(since=event.at, reason=event.reason)
    if event.hard:
        return stopping.enter(state, outcome=None, reason=f"paused{begun.why}", shutdown=False, at=event.at)
    if state.pause is not None:
        return Rejected(state, "it is paused already")
    return Step(replace(state, pause=begun))


def go_on(state: AtWork, event: ContinueRequested) -> Answer:
    if state.pause is None:
        return Rejected(state, NOT_PAUSED)
    return Step(*without_pause(state, at=event.at))


def without_pause(state: W, *, at: float) -> tuple[W, tuple[Effect, ...]]:
    """The clock of `wall_clock` goes on."""
    if state.pause is None:
        return state, ()
    then = replace(state, pause=None, counted_from=state.counted_from + at - state.pause.since)
    return then, wall_clock(then)


def wall_clock(state: AtWork) -> tuple[Wake, ...]:
    """The end of the time that the run may take, where it has one."""
    return () if state.time_up is None else (Wake(name="wall_clock", at=state.time_up),)


def change_plan(state: AtWork, event: PlanChangeRequested) -> Answer:
    """Conductors stay, and so do the phases that have ended. A limit that is below what is used ends the run, as it ends any."""
    plan, old, ended = event.plan, state.plan, state.ended
    if plan.conductors != old.conductors:
        return Rejected(state, "it would need other conductors")
    if len(plan.phases) != len(old.phases) or plan.phases[:ended] != old.phases[:ended]:
        return Rejected(state, f"{ended} of its phases have ended")
    left = max(state.conductors.restarts_left + plan.restarts - old.restarts, 0)
    then = replace(state, plan=plan, conductors=replace(state.conductors, restarts_left=left))
    return Step(then, wall_clock(then) if plan.wall_clock != old.wall_clock else ())


def stop(state: AtWork, event: StopRequested) -> Answer:
    return stopping.enter(
        state, outcome=None, reason=event.reason, shutdown=True, at=event.at, urgent=event.urgent
    )
