"""Stopping: takes every conductor down the kill ladder, sees each one gone, then removes sockets and temp files.

What can't be killed past the deadline is named with its pid, and the slot is quarantined until it is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from states.base import Answer, Crewed, Dropped, Step
from states.effects import EndRun, RemoveTraces, Wake
from states.pristine import Pristine

if TYPE_CHECKING:
    from states.crew import ConductorStates
    from states.events import (
        ConductorExited,
        ConductorStuck,
        DeadlinePassed,
        ResultWritten,
        StopRequested,
        TracesRemoved,
    )
    from states.plan import Outcome, RunPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping(Crewed):
    """`outcome` None: the run is interrupted and goes on in the next invocation of the daemon, unless a result that was
    late is durable after all.
    """

    name: ClassVar[str] = "stopping"
    outcome: Outcome | None
    reason: str
    shutdown: bool = False
    removing: bool = False

    @property
    def waits_for(self) -> str:
        if self.removing:
            return "sockets and temporary files to be removed"
        names = ", ".join(f"{m.name} (pid {m.pid})" if m.pid else m.name for m in self.crew.alive)
        return f"processes to be gone: {names}"


def enter(
    *,
    plan: RunPlan,
    crew: ConductorStates,
    outcome: Outcome | None,
    reason: str,
    shutdown: bool,
    at: float,
    urgent: bool = False,
) -> Step:
    state = Stopping(plan=plan, crew=crew, outcome=outcome, reason=reason, shutdown=shutdown)
    wake = Wake(name="stop", at=at + plan.deadlines.stop)
    step = _proceed(state)
    return Step(step.state, (wake, *crew.stop(urgent=urgent), *step.effects), cause=reason)


def exited(state: Stopping, event: ConductorExited) -> Answer:
    if state.crew.current(event) is None:
        return Dropped(state, "of an earlier incarnation")
    return _proceed(replace(state, crew=state.crew.gone(event.conductor)))


def stuck(state: Stopping, event: ConductorStuck) -> Answer:
    if state.crew.current(event) is None:
        return Dropped(state, "of an earlier incarnation")
    crew = state.crew.started(event.conductor, event.pid).stuck(event.conductor)
    return _proceed(replace(state, crew=crew))


def deadline(state: Stopping, event: DeadlinePassed) -> Answer:
    if event.name != "stop" or state.removing:
        return Dropped(state, f"deadline {event.name} means nothing any more")
    crew = state.crew
    for member in crew.alive:
        crew = crew.stuck(member.name)
    return _proceed(replace(state, crew=crew))


def stop(state: Stopping, event: StopRequested) -> Answer:
    effects = state.crew.stop(urgent=True) if event.urgent else ()
    return Step(replace(state, shutdown=True), effects)


def written(state: Stopping, event: ResultWritten) -> Answer:
    """Later than its deadline, yet durable: that counts."""
    if state.outcome is not None:
        return Dropped(state, "the outcome is known")
    return Step(replace(state, outcome=event.outcome))


def removed(state: Stopping, event: TracesRemoved) -> Answer:
    if not state.removing:
        return Dropped(state, "processes are still to be seen gone")
    stuck_pids = state.crew.stuck_pids
    end = EndRun(outcome=state.outcome, reason=state.reason, stuck=stuck_pids)
    left = [*(f"pid {pid}" for pid in stuck_pids), *event.left]
    cause = f"left behind: {', '.join(left)}" if left else "nothing is left"
    return Step(Pristine(shutdown=state.shutdown, stuck=stuck_pids), (end,), cause=cause)


def _proceed(state: Stopping) -> Step:
    if state.removing or state.crew.alive:
        return Step(state)
    return Step(replace(state, removing=True), (RemoveTraces(),))
