"""Which entries a step of the state machine adds to the run's record: the event, the transition, and notes for some
effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from states.at_work import AtWork
from states.base import RunInWork
from states.effects import BeginPhase, EndPhase, EndRun
from states.events import ConductorExited
from states.finalizing import Finalizing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.runs.assignment import Assignment
    from states.base import State, Step
    from states.effects import Effect
    from states.events import Event

Entry = tuple[str, dict[str, Any]]


def entries(
    before: State,
    event: Event,
    step: Step,
    *,
    detail: Mapping[str, Any] | None = None,
    assignment: Assignment | None = None,
) -> list[Entry]:
    """Kinds and data, in order. An event's data are its fields, so that a recorded run can be replayed (`replay`).

    `detail` and `assignment` add what the state machine does not know.
    """
    data = msgspec.to_builtins(event, order="deterministic")  # sets get the same order in every process
    del data["run"]
    if isinstance(event, ConductorExited) and isinstance(before, RunInWork):
        conductor = before.conductors[event.conductor]
        asked = isinstance(before, AtWork) and conductor.replacing
        data["expected"] = before.name == "stopping" or asked
        data["reason"] = (
            event.reason or conductor.last_error
        )  # why it was killed, or what it has told of itself
    rows: list[Entry] = [(event.kind, {**data, **(detail or {})})]
    for effect in step.effects:
        rows += _note(effect, assignment)
    if type(before) is not type(step.state):
        transition = {"from": before.name, "to": step.state.name, "cause": step.cause or event.kind}
        if isinstance(step.state, Finalizing):  # recovery uses it if the result does not become durable
            transition |= {"outcome": step.state.outcome, "reason": step.state.reason}
        last = [row for row in rows if row[0] in ("run.ended", "run.interrupted")]
        rows = [row for row in rows if row not in last]
        rows += [("run.transition", transition), *last]
    return rows


def _note(effect: Effect, assignment: Assignment | None) -> list[Entry]:
    match effect:
        case BeginPhase(phase=phase, name=name):
            data: dict[str, Any] = {"phase": name, "index": phase}
            if assignment is not None:
                data |= {
                    "mode": assignment.run.phases[phase].mode,
                    "episodes": assignment.episodes_of(phase),
                    "tasks": assignment.tasks_of(phase),
                }
            return [("phase.started", data)]
        case EndPhase(phase=phase, name=name, end=end):
            return [("phase.ended", {"phase": name, "index": phase, "end": end})]
        case EndRun(outcome=None, reason=reason):
            return [("run.interrupted", {"reason": reason})]
        case EndRun(outcome=outcome, reason=reason, stuck=stuck):
            return [("run.ended", {"outcome": outcome, "reason": reason, "stuck": list(stuck)})]
        case _:
            return []
