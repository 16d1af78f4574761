"""Stopping: terminates every conductor, confirms each exit, then removes sockets and temporary files.

A process that is alive past the deadline is named with its pid, and the slot is quarantined until it is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from states.base import Answer, Dropped, RunInWork, Step
from states.effects import EndRun, RemoveTraces, Wake
from states.pristine import Pristine

if TYPE_CHECKING:
    from states.events import (
        ConductorExited,
        ConductorStuck,
        DeadlinePassed,
        ResultWritten,
        StopRequested,
        TracesRemoved,
    )
    from states.plan import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping(RunInWork):
    """`outcome` None: the run is interrupted and continues in the next invocation of the daemon, unless its late
    result becomes durable after all.
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
        names = ", ".join(f"{m.name} (pid {m.pid})" if m.pid else m.name for m in self.conductors.alive)
        return f"processes to be gone: {names}"


def enter(
    before: RunInWork,
    *,
    outcome: Outcome | None,
    reason: str,
    shutdown: bool,
    at: float,
    urgent: bool = False,
) -> Step:
    plan, conductors = before.plan, before.conductors
    state = Stopping(plan=plan, conductors=conductors, outcome=outcome, reason=reason, shutdown=shutdown)
    wake = Wake(name="stop", at=at + plan.deadlines.stop)
    step = _proceed(state)
    return Step(step.state, (wake, *conductors.stop(urgent=urgent), *step.effects), cause=reason)


def exited(state: Stopping, event: ConductorExited) -> Answer:
    return _proceed(replace(state, conductors=state.conductors.gone(event.conductor)))


def stuck(state: Stopping, event: ConductorStuck) -> Answer:
    return _proceed(replace(state, conductors=state.conductors.stuck(event.conductor, event.pid)))


def deadline(state: Stopping, event: DeadlinePassed) -> Answer:
    if event.name != "stop" or state.removing:
        return Dropped(state, f"deadline {event.name} means nothing any more")
    conductors = state.conductors
    for conductor in conductors.alive:
        conductors = conductors.stuck(conductor.name, conductor.pid)
    return _proceed(replace(state, conductors=conductors))


def stop(state: Stopping, event: StopRequested) -> Answer:
    effects = state.conductors.stop(urgent=True) if event.urgent else ()
    return Step(replace(state, shutdown=True), effects)


def written(state: Stopping, event: ResultWritten) -> Answer:
    """A result that is durable after its deadline counts."""
    if state.outcome is not None:
        return Dropped(state, "the outcome is known")
    return Step(replace(state, outcome=event.outcome))


def removed(state: Stopping, event: TracesRemoved) -> Answer:
    if not state.removing:
        return Dropped(state, "processes are still to be seen gone")
    stuck_pids = state.conductors.stuck_pids
    end = EndRun(outcome=state.outcome, reason=state.reason, stuck=stuck_pids)
    left = [*(f"pid {pid}" for pid in stuck_pids), *event.left]
    cause = f"left behind: {', '.join(left)}" if left else "nothing is left"
    return Step(Pristine(shutdown=state.shutdown, stuck=stuck_pids), (end,), cause=cause)


def _proceed(state: Stopping) -> Step:
    if state.removing or state.conductors.alive:
        return Step(state)
    return Step(replace(state, removing=True), (RemoveTraces(),))
