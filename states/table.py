"""The table: for every state and every event, the handler and the states that it may lead to. It runs the machine,
tests walk it, and the diagram in docs/ is drawn from it.

A row is `Rule(handler, to, label)`. `to` names the states that the handler may lead to besides staying; `label` is
the text on the arrow. `late` drops, `refuse` refuses a command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from states import at_work, base, events, finalizing, pristine, running, starting, stopping
from states.base import Answer, Dropped, Rejected, RunInWork, State, Step
from states.finalizing import Finalizing
from states.pristine import Pristine
from states.running import Running
from states.starting import Starting
from states.stopping import Stopping

if TYPE_CHECKING:
    from states.events import Event

Handler: TypeAlias = Callable[[Any, Any], Answer]


class UndeclaredTransition(Exception):
    """A handler led to a state that its row of the table does not name: a bug of the machine."""


@dataclass(frozen=True, slots=True)
class Rule:
    handler: Handler
    to: tuple[type[State], ...] = ()
    label: str = ""


def late(state: State, event: Event) -> Answer:
    """A report about work that this state has left behind, or that no run here has begun."""
    return Dropped(state, f"{event.kind} means nothing when {state.name}")


def refuse(state: State, event: Event) -> Answer:
    """A command at the wrong time."""
    if isinstance(event, events.RunAssigned):
        work = f"run {state.run.uid} is in work" if state.run else "no run can be taken"
        return Rejected(state, f"{work} ({state.name})")
    if state.run is None:
        return Rejected(state, "no run is in work")
    return Rejected(state, f"the run is {state.name} already")


_LATE: Final = Rule(late)
_REFUSE: Final = Rule(refuse)
_BASE: Final[dict[type[Event], Rule]] = {
    **dict.fromkeys(events.EVENTS, _LATE),
    **dict.fromkeys(events.COMMANDS, _REFUSE),
}
"""For a state without a row of its own: commands are refused, all else comes too late."""
_AT_WORK: Final[dict[type[Event], Rule]] = {
    **_BASE,
    events.AbortRequested: Rule(at_work.abort, (Finalizing,), "abort"),
    events.StopRequested: Rule(at_work.stop, (Stopping,), "stop of the daemon"),
    events.PauseRequested: Rule(at_work.pause, (Stopping,), "hard pause"),
    events.ContinueRequested: Rule(at_work.go_on),
    events.PlanChangeRequested: Rule(at_work.change_plan),
    events.ConductorStarted: Rule(base.started),
    events.ConductorFailed: Rule(at_work.failed),
    events.ConductorExited: Rule(at_work.exited, (Finalizing,), "failure without restarts left"),
    events.ConductorSilent: Rule(base.silent),
    events.ConductorStuck: Rule(at_work.stuck, (Finalizing,), "failure without restarts left"),
    events.LimitExceeded: Rule(at_work.limit, (Finalizing,), "limit"),
    events.FolderLost: Rule(at_work.folder_lost, (Finalizing,), "folder removed"),
}

TABLE: Final[Mapping[type[State], Mapping[type[Event], Rule]]] = {
    Pristine: {
        **_BASE,
        events.RunAssigned: Rule(starting.assign, (Starting,), "run assigned"),
        events.StopRequested: Rule(pristine.stop),
        events.ProcessesGone: Rule(pristine.gone),
    },
    Starting: {
        **_AT_WORK,
        events.ConductorReady: Rule(starting.ready, (Running, Finalizing), "all conductors ready"),
        events.DeadlinePassed: Rule(starting.deadline, (Finalizing,), "deadline"),
    },
    Running: {
        **_AT_WORK,
        events.ConductorReady: Rule(running.ready, (Finalizing,), "last phase ended"),
        events.ConductorExited: Rule(running.exited, (Finalizing,), "failure without restarts left"),
        events.DeadlinePassed: Rule(at_work.deadline, (Finalizing,), "limit"),
        events.PartEnded: Rule(running.part_ended, (Finalizing,), "last phase ended"),
        events.RunStalled: Rule(running.stalled, (Finalizing,), "no progress"),
        events.RunProgressResumed: Rule(running.progress_resumed),
        events.PartFailed: Rule(running.part_failed),
        events.PauseRequested: Rule(running.pause, (Stopping,), "hard pause"),
        events.ContinueRequested: Rule(running.go_on, (Finalizing,), "last phase ended"),
        events.WorkChangeRequested: Rule(running.work_change_requested),
        events.PlanChangeRequested: Rule(running.change_plan),
        events.FlowRequested: Rule(running.flow_requested, (Finalizing,), "failure without restarts left"),
    },
    Finalizing: {
        **_BASE,
        events.StopRequested: Rule(finalizing.stop),
        events.DeadlinePassed: Rule(finalizing.deadline, (Stopping,), "result not durable in time"),
        events.ConductorStarted: Rule(base.started),
        events.ConductorReady: Rule(finalizing.ready),
        events.ConductorExited: Rule(finalizing.exited),
        events.ConductorSilent: Rule(base.silent),
        events.ConductorStuck: Rule(finalizing.stuck),
        events.PartEnded: Rule(finalizing.part_ended),
        events.ResultWritten: Rule(finalizing.written, (Stopping,), "result is durable"),
        events.ResultFailed: Rule(finalizing.write_failed, (Stopping,), "result refused at a stop"),
    },
    Stopping: {
        **_BASE,
        events.StopRequested: Rule(stopping.stop),
        events.DeadlinePassed: Rule(stopping.deadline),
        events.ConductorStarted: Rule(base.started),
        events.ConductorExited: Rule(stopping.exited),
        events.ConductorStuck: Rule(stopping.stuck),
        events.ResultWritten: Rule(stopping.written),
        events.TracesRemoved: Rule(stopping.removed, (Pristine,), "nothing is left"),
    },
}


def advance(state: State, event: Event) -> Answer:
    """The machine's answer to an event. Raises UndeclaredTransition for a bug of a handler, nothing else.

    A stop concerns the daemon, whichever run was in work when it was requested. News of a conductor's earlier
    incarnation change nothing.
    """
    elsewhere = state.run is not None and event.run != state.run.uid
    if elsewhere and not isinstance(event, events.RunAssigned | events.StopRequested):
        why = f"of run {event.run or '(none)'}, which is not in work here"
        return Rejected(state, why) if isinstance(event, events.COMMANDS) else Dropped(state, why)
    if (
        isinstance(event, events.ConductorEvent)
        and isinstance(state, RunInWork)
        and not state.conductors.concerned(event)
    ):
        return Dropped(state, f"{event.kind} of an earlier incarnation")
    rule = TABLE[type(state)][type(event)]
    answer = rule.handler(state, event)
    if isinstance(answer, Step):
        target = type(answer.state)
        if target is not type(state) and target not in rule.to:
            raise UndeclaredTransition(
                f"{state.name} answered {event.kind} with {answer.state.name}, which the table does not declare"
            )
    return answer


def diagram() -> str:
    """The table as a Mermaid state diagram; arrows with the same ends are merged, with all labels."""
    lines = ["stateDiagram-v2", f"    [*] --> {Pristine.name}"]
    for source, rules in TABLE.items():
        arrows: dict[type[State], list[str]] = {}
        for rule in rules.values():
            for target in rule.to:
                labels = arrows.setdefault(target, [])
                if rule.label not in labels:
                    labels.append(rule.label)
        lines += [
            f"    {source.name} --> {target.name}: {', '.join(labels)}" for target, labels in arrows.items()
        ]
    return "\n".join(lines) + "\n"
