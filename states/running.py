"""Running: the phases in order. Handles exits within the run's restarts, aborts, limits and stops.

A part of a phase begins as soon as its conductor is ready, and begins again when that conductor was restarted: work
that had ended is on record and is not repeated. While a service is away no part begins, and nothing further of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from states import at_work, base, finalizing
from states.at_work import AtWork
from states.base import Answer, Dropped, Rejected, Step
from states.effects import (
    BeginPhase,
    ChangeTasks,
    ChangeWork,
    EndPhase,
    PausePart,
    StartPart,
    StopConductor,
    StopPart,
)
from states.events import PartEnded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from states.conductors import ConductorState
    from states.effects import Effect
    from states.events import (
        ConductorExited,
        ConductorReady,
        ContinueRequested,
        Event,
        FlowRequested,
        PartFailed,
        PauseRequested,
        PlanChangeRequested,
        RunProgressResumed,
        RunStalled,
        WorkChangeRequested,
    )
    from states.plan import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Running(AtWork):
    """`open`: parts of the phase that have not ended. `ends`: how the others ended. `failure`: the line of the first
    one. `failed` phases have ended before it with failures, `first_failed` is the line of the first one. `stalled`: the
    monotonic second of the last progress, once that is too long ago. `paused` (by a condition), `stopped`: why no episode begins any more, and why the
    phase ends; `last`: no phase follows, because of `stopped`.
    """

    name: ClassVar[str] = "running"
    phase: int
    open: frozenset[Part]
    ends: tuple[str, ...] = ()
    failures: int = 0
    failure: str = ""
    failed: int = 0
    first_failed: str = ""
    stalled: float | None = None
    paused: str = ""
    stopped: str = ""
    last: bool = False

    @property
    def position(self) -> tuple[int, frozenset[Part]]:
        return self.phase, self.open

    @property
    def ended(self) -> int:
        return self.phase

    def ready_conductor_of(self, part: Part) -> ConductorState | None:
        """The conductor that works on a part, if it is ready."""
        conductor = self.conductors[self.plan.phases[self.phase].conductor_of(part)]
        return conductor if conductor.standing == "ready" else None

    @property
    def where(self) -> str:
        return f"in phase {self.plan.phases[self.phase].name}"

    @property
    def missing(self) -> str:
        return f"phase {self.plan.phases[self.phase].name}: {self.phase_waits_for}"

    @property
    def phase_waits_for(self) -> str:
        phase = self.plan.phases[self.phase]
        conductors = dict.fromkeys(phase.conductor_of(part) for part in sorted(self.open))
        missing = [name for name in conductors if not self.conductors.is_ready(name)]
        missing += self.conductors.missing_services
        if missing:
            return f"conductor {', '.join(missing)} to be ready again"
        if self.paused and "simulation" in self.open:
            return f"the end of a pause ({self.paused})"
        return f"{' and '.join(sorted(self.open))} to end"


def enter(before: AtWork, *, phase: int, at: float, cause: str) -> Step:
    """Begins the phase, or the end after the last one."""
    plan, phases = before.plan, before.plan.phases
    failed, first_failed = plan.failed, plan.failure
    reason = ""
    if isinstance(before, Running):
        failed, first_failed = before.failed, before.first_failed
        if before.last:
            phase, reason = len(phases), before.stopped
    if phase >= len(phases):
        bad = f"{failed} of {len(phases)} phases had failures; first: {first_failed}" if failed else ""
        reason = "; ".join(filter(None, (bad, reason)))
        return finalizing.enter(before, outcome="finished", reason=reason, at=at)
    parts = phases[phase].parts
    state = Running(
        plan=plan,
        conductors=before.conductors,
        phase=phase,
        open=parts,
        failed=failed,
        first_failed=first_failed,
        pause=before.pause,
        counted_from=before.counted_from,
    )
    state, begun = _begin(state, parts)
    return Step(state, (BeginPhase(phase=phase, name=phases[phase].name), *begun), cause=cause)


def ready(state: Running, event: ConductorReady) -> Answer:
    if state.conductors.is_ready(event.conductor):
        return Dropped(state, "it was ready before")
    again = replace(state, conductors=state.conductors.ready(event.conductor, at=event.at))
    if state.conductors[event.conductor].kind == "service":
        return _go_on_with_services(again, event)
    phase = state.plan.phases[state.phase]
    parts = [part for part in sorted(state.open) if phase.conductor_of(part) == event.conductor]
    if "simulation" in parts:
        again = replace(again, paused="")
    return _begin_open(again, parts, event)


def exited(state: Running, event: ConductorExited) -> Answer:
    answer = at_work.exited(state, event)
    if not isinstance(answer, Step) or not isinstance(answer.state, Running):
        return answer
    is_first = state.conductors[event.conductor].kind == "service" and not state.conductors.missing_services
    paused = _pause_parts(answer.state, paused=True) if is_first and state.pause is None else ()
    return Step(answer.state, (*answer.effects, *paused))


def _go_on_with_services(state: Running, event: ConductorReady) -> Answer:
    """A service is ready again."""
    if state.conductors.missing_services or state.pause is not None:
        return Step(state)
    step = _begin_open(replace(state, unbegun=frozenset()), sorted(state.unbegun), event)
    return Step(step.state, (*_pause_parts(state, paused=False), *step.effects), cause=step.cause)


def _begin_open(state: Running, parts: Sequence[Part], event: Event) -> Step:
    """Open parts may begin now. Tasks that were to be stopped before they had begun have ended."""
    if "tasks" in parts and state.stopped and state.pause is None:
        step = _ended(state, PartEnded(event.run, event.at, phase=state.phase, part="tasks", end="stopped"))
        if state.open == {"tasks"} or not isinstance(step.state, Running):
            return step
        state, parts = step.state, [part for part in parts if part != "tasks"]
    return Step(*_begin(state, parts))


def part_ended(state: Running, event: PartEnded) -> Answer:
    if event.phase != state.phase or event.part not in state.open:
        return Dropped(state, f"{event.part} of phase {event.phase} is not open")
    return _ended(state, event)


def _ended(state: Running, event: PartEnded) -> Step:
    state = replace(
        state,
        open=state.open - {event.part},
        ends=(*state.ends, event.end),
        failures=state.failures + event.failures,
        failure=state.failure or event.first_failure,
    )
    phase = state.plan.phases[state.phase]
    fails = event.failures > 0 and phase.on_failure == "fail" and not event.tolerated
    if state.open and not fails:
        return Step(state)
    end = EndPhase(phase=state.phase, name=phase.name, end="+".join(state.ends))
    reason = failure_line(phase.name, state.failures, state.failure, exceeded=event.exceeded)
    if state.failures:
        state = replace(state, failed=state.failed + 1, first_failed=state.first_failed or reason)
    if fails:
        step = finalizing.enter(state, outcome="failed", reason=reason, at=event.at)
        if state.open:  # of them the phase's end is told there
            return step
    else:
        cause = f"phase {phase.name} ended: {end.end}"
        step = enter(state, phase=state.phase + 1, at=event.at, cause=cause)
    return Step(step.state, (end, *step.effects), cause=step.cause or f"phase {phase.name} ended: {end.end}")


def failure_line(phase: str, failures: int, first: str, *, exceeded: str = "") -> str:
    """What is told of a phase with failures; `first` is the line of the first one, `exceeded` the bound that was passed."""
    told = f"phase {phase}: {failures} ended badly"
    return told + (f", beyond {exceeded}" if exceeded else "") + (f", first {first}" if first else "")


def part_failed(state: Running, event: PartFailed) -> Answer:
    """A conductor that accepts no command is useless: it is replaced."""
    if event.phase != state.phase or event.part not in state.open:
        return Dropped(state, f"{event.part} of phase {event.phase} is not open")
    return base.kill(
        state, event.conductor, f"did not begin {event.part} of phase {event.phase}: {event.reason}"
    )


def stalled(state: Running, event: RunStalled) -> Answer:
    """Follows the run's `on_stall`: only its status shows it, or its conductors are replaced while restarts last, or
    the run fails.
    """
    plan = state.plan
    if plan.stall_timeout is None:
        return Dropped(state, "the run has no stall_timeout")
    if state.pause is not None:
        return Dropped(state, "it is paused")
    reason = f"no progress for stall_timeout of {plan.stall_timeout:g} s"
    if plan.on_stall == "fail":
        reason = f"{reason} {state.where}, which waited for {state.phase_waits_for}"
        return finalizing.enter(state, outcome="failed", reason=reason, at=event.at)
    conductors = state.conductors
    kills: tuple[StopConductor, ...] = ()
    if plan.on_stall == "restart":
        for conductor in state.conductors.all:
            if conductor.standing == "ready":
                conductors, kill = conductors.kill(conductor.name, reason)
                kills = (*kills, kill)
    return Step(replace(state, conductors=conductors, stalled=event.since), kills)


def progress_resumed(state: Running, event: RunProgressResumed) -> Answer:
    if state.stalled is None:
        return Dropped(state, f"run {event.run} had not stalled")
    return Step(replace(state, stalled=None))


def pause(state: Running, event: PauseRequested) -> Answer:
    answer = at_work.pause(state, event)
    if isinstance(answer, Step) and isinstance(answer.state, Running):
        return Step(replace(answer.state, stalled=None), _pause_parts(state, paused=True))
    return answer


def go_on(state: Running, event: ContinueRequested) -> Answer:
    """Ends a pause of a condition, too."""
    if state.pause is None and not state.paused:
        return Rejected(state, at_work.NOT_PAUSED)
    then, clock = at_work.without_pause(replace(state, paused="", unbegun=frozenset()), at=event.at)
    answer = _begin_open(then, sorted(state.unbegun), event)
    held, ends_flow = bool(state.conductors.missing_services), bool(state.paused)
    told = _pause_parts(state, paused=held, ends_flow=ends_flow) if ends_flow or not held else ()
    return Step(answer.state, (*clock, *told, *answer.effects), cause=answer.cause)


def flow_requested(state: Running, event: FlowRequested) -> Answer:
    """`RESTART` replaces the conductors of the episodes, for one of the run's restarts. `STOP_PHASE` also ends the phase's
    tasks, `SHUTDOWN` the run after that. All else is up to the simulation, which has asked.
    """
    if event.phase != state.phase or "simulation" not in state.open:
        return Dropped(state, f"simulation of phase {event.phase} is not open")
    match event.flow:
        case "PAUSE":
            return Step(replace(state, paused=event.reason))
        case "RESTART":
            return _restart_conductors(state, event)
        case "STOP_PHASE" | "SHUTDOWN":
            stopped = replace(state, stopped=event.reason, last=event.flow == "SHUTDOWN")
            return Step(stopped, _stop_tasks(stopped))
        case _:
            return Step(state)


def change_plan(state: Running, event: PlanChangeRequested) -> Answer:
    answer = at_work.change_plan(state, event)
    if not isinstance(answer, Step) or not isinstance(answer.state, Running):
        return answer
    then, phase = answer.state, event.plan.phases[state.phase]
    before = state.plan.phases[state.phase]
    if (phase.parts, phase.simulated_by) != (before.parts, before.simulated_by):
        return Rejected(state, f"phase {phase.name} has begun")
    begun = state.open - state.unbegun
    effects: list[Effect] = [*answer.effects]
    if event.renews and "simulation" in begun:
        conductors, retired = then.conductors.retire(phase.simulated_by, "its settings have changed")
        then = replace(then, conductors=conductors)
        effects += retired
    tasks = state.ready_conductor_of("tasks") if event.tasks and "tasks" in begun else None
    if tasks is not None:
        told = ChangeTasks(
            conductor=tasks.name,
            incarnation=tasks.incarnation,
            phase=state.phase,
            part="tasks",
            tasks=event.tasks,
        )
        effects.append(told)
    return Step(then, tuple(effects))


def work_change_requested(state: Running, event: WorkChangeRequested) -> Answer:
    """A part that has not begun, or begins again, learns of what was cancelled when it begins: that is on record by then."""
    if event.phase != state.phase or event.part not in state.open:
        return Rejected(state, f"{event.part} of phase {event.phase} is not at work")
    conductor = state.ready_conductor_of(event.part)
    if conductor is None or event.part in state.unbegun:
        return Step(state)
    effect = ChangeWork(
        conductor=conductor.name,
        incarnation=conductor.incarnation,
        phase=event.phase,
        part=event.part,
        change=event.change,
        episode=event.episode,
        task=event.task,
        reason=event.reason,
    )
    return Step(state, (effect,))


def _restart_conductors(state: Running, event: FlowRequested) -> Step:
    found = state.conductors.restart_all(event.conductors, event.reason)
    if found is None:
        reason = f"{event.reason} (the budget of {state.plan.restarts} conductor restarts is used up)"
        return finalizing.enter(state, outcome="failed", reason=reason, at=event.at)
    conductors, effects = found
    return Step(replace(state, conductors=conductors), effects)


def _stop_tasks(state: Running) -> tuple[StopPart, ...]:
    conductor = state.conductors.find(state.plan.phases[state.phase].conductor_of("tasks"))
    if "tasks" not in state.open or conductor is None or conductor.standing != "ready":
        return ()
    return (
        StopPart(
            phase=state.phase,
            part="tasks",
            conductor=conductor.name,
            incarnation=conductor.incarnation,
            reason=state.stopped,
        ),
    )


def _begin(state: Running, parts: Iterable[Part]) -> tuple[Running, tuple[StartPart, ...]]:
    """Those whose conductor is ready: the others begin when it is. A pause keeps them all from beginning, and so does a service that
    is away.
    """
    if state.pause is not None or state.conductors.missing_services:
        return replace(state, unbegun=state.unbegun | {*parts}), ()
    ready = [(part, state.ready_conductor_of(part)) for part in sorted(parts)]
    return state, tuple(
        StartPart(phase=state.phase, part=part, conductor=conductor.name, incarnation=conductor.incarnation)
        for part, conductor in ready
        if conductor is not None
    )


def _pause_parts(state: Running, *, paused: bool, ends_flow: bool = False) -> tuple[PausePart, ...]:
    """Of the parts that have begun."""
    begun = [(part, state.ready_conductor_of(part)) for part in sorted(state.open - state.unbegun)]
    return tuple(
        PausePart(
            phase=state.phase,
            part=part,
            conductor=conductor.name,
            incarnation=conductor.incarnation,
            paused=paused,
            ends_flow=ends_flow,
        )
        for part, conductor in begun
        if conductor is not None
    )
