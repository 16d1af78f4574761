"""Finalizing: ends the work under way, then makes result and outcome durable.

Every run that ends passes through this state exactly once, however it ends. An interrupted run does not: it has no
outcome. The first durable result counts: `ResultWritten` carries its outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from states import stopping
from states.base import Answer, Dropped, RunInWork, Step
from states.effects import Effect, EndPhase, StopPart, Wake, WriteResult

if TYPE_CHECKING:
    from states.at_work import AtWork
    from states.events import (
        ConductorExited,
        ConductorReady,
        ConductorStuck,
        DeadlinePassed,
        PartEnded,
        ResultFailed,
        ResultWritten,
        StopRequested,
    )
    from states.plan import Outcome, Part

RETRY_SECONDS = 1.0
"""Seconds between two attempts to write a result that the disk refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalizing(RunInWork):
    """`open`: parts of `phase` that were told to stop. `urgent`: no grace once the result is durable. `overdue`: the
    deadline has passed once already.
    """

    name: ClassVar[str] = "finalizing"
    outcome: Outcome
    reason: str
    phase: int
    open: frozenset[Part] = frozenset()
    shutdown: bool = False
    urgent: bool = False
    overdue: bool = False

    @property
    def waits_for(self) -> str:
        if self.open:
            return f"{' and '.join(sorted(self.open))} of phase {self.plan.phases[self.phase].name} to stop"
        return "the result to be durable"


def enter(state: AtWork, *, outcome: Outcome, reason: str, at: float) -> Step:
    """Parts that have not begun, or whose conductor is not ready to stop them, count as closed."""
    plan, conductors = state.plan, state.conductors
    phase, open_parts = state.position
    by_part = {part: plan.phases[phase].conductor_of(part) for part in open_parts}
    begun = {part: conductor for part, conductor in by_part.items() if part not in state.unbegun}
    stoppable = frozenset(part for part, conductor in begun.items() if conductors.is_ready(conductor))
    entered = Finalizing(
        plan=plan, conductors=conductors, outcome=outcome, reason=reason, phase=phase, open=stoppable
    )
    effects: list[Effect] = [Wake(name="finalize", at=at + plan.deadlines.finalize)]
    if open_parts:
        effects.append(EndPhase(phase=phase, name=plan.phases[phase].name, end=outcome))
    if not stoppable:
        return Step(entered, (*effects, WriteResult(outcome=outcome, reason=reason)), cause=reason)
    effects += [
        StopPart(
            phase=phase,
            part=part,
            conductor=by_part[part],
            incarnation=conductors[by_part[part]].incarnation,
            reason=reason,
        )
        for part in sorted(stoppable)
    ]
    close = Wake(name="close", at=at + min(plan.deadlines.stop, plan.deadlines.finalize) / 2)
    return Step(entered, (*effects, close), cause=reason)


def part_ended(state: Finalizing, event: PartEnded) -> Answer:
    if event.phase != state.phase or event.part not in state.open:
        return Dropped(state, f"{event.part} of phase {event.phase} is not open")
    return _close(state, frozenset({event.part}))


def ready(state: Finalizing, event: ConductorReady) -> Answer:
    if state.conductors[event.conductor].standing != "starting":
        return Dropped(state, "it was ready before, or could not be killed")
    return Step(replace(state, conductors=state.conductors.ready(event.conductor, at=event.at)))


def exited(state: Finalizing, event: ConductorExited) -> Answer:
    """No conductor is started again; the parts of one that exited have stopped."""
    closed = _of(state, event.conductor)
    return _close(replace(state, conductors=state.conductors.gone(event.conductor)), closed)


def stuck(state: Finalizing, event: ConductorStuck) -> Answer:
    conductors = state.conductors.stuck(event.conductor, event.pid)
    return _close(replace(state, conductors=conductors), _of(state, event.conductor))


def deadline(state: Finalizing, event: DeadlinePassed) -> Answer:
    if event.name == "close" and state.open:
        return _close(state, state.open)
    if event.name == "retry" and not state.open:
        return Step(state, (_write(state),))
    if event.name != "finalize":
        return Dropped(state, f"deadline {event.name} means nothing any more")
    if state.overdue:
        reason = f"{state.reason}; the result was not durable in time"
        return _leave(state, outcome=None, reason=reason, at=event.at)
    limit = state.plan.deadlines.finalize
    late = f"finalizing took longer than {limit:g} s (deadlines.finalize)"
    reason = f"{state.reason}; {late}" if state.reason else late
    failed = replace(state, outcome="failed", reason=reason, open=frozenset(), overdue=True)
    return Step(failed, (_write(failed), Wake(name="finalize", at=event.at + limit)))


def written(state: Finalizing, event: ResultWritten) -> Answer:
    return _leave(state, outcome=event.outcome, reason=state.reason, at=event.at)


def write_failed(state: Finalizing, event: ResultFailed) -> Answer:
    """The write is retried, except when the daemon shuts down: the outcome is on record, and the next start makes it
    durable.
    """
    if state.shutdown:
        reason = f"{state.reason}; the result is not durable yet: {event.reason}".removeprefix("; ")
        return _leave(state, outcome=None, reason=reason, at=event.at)
    return Step(state, (Wake(name="retry", at=event.at + RETRY_SECONDS),))


def stop(state: Finalizing, event: StopRequested) -> Answer:
    """The known outcome is made durable before the daemon shuts down; work under way is not waited for."""
    return _close(replace(state, shutdown=True, urgent=state.urgent or event.urgent), state.open)


def _leave(state: Finalizing, *, outcome: Outcome | None, reason: str, at: float) -> Step:
    return stopping.enter(
        state, outcome=outcome, reason=reason, shutdown=state.shutdown, at=at, urgent=state.urgent
    )


def _close(state: Finalizing, parts: frozenset[Part]) -> Step:
    if not parts:
        return Step(state)
    closed = replace(state, open=state.open - parts)
    return Step(closed, () if closed.open else (_write(closed),))


def _write(state: Finalizing) -> WriteResult:
    return WriteResult(outcome=state.outcome, reason=state.reason)


def _of(state: Finalizing, conductor: str) -> frozenset[Part]:
    """The open parts of that conductor."""
    phases = state.plan.phases
    return frozenset(part for part in state.open if phases[state.phase].conductor_of(part) == conductor)
