"""Every state, in many variants, gets every event, in many variants."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import get_args

import pytest

from states import TABLE, Dropped, Pristine, Rejected, Step, advance, events, table
from states.base import State
from states.effects import Effect
from states.table import Rule
from tests.states.state_scenes import (
    LAKE,
    NAMES,
    PLAN,
    SIMULATION,
    TASKS,
    Slot,
    abort,
    asked,
    assigned,
    change,
    change_plan,
    closing,
    ended,
    exceeded,
    exited,
    failed_report,
    finalizing,
    folder_lost,
    go_on,
    gone_at_last,
    moved,
    not_taken,
    not_written,
    passed,
    pause,
    ready,
    removed,
    running,
    silent,
    stalled,
    starting,
    stop,
    stopping,
    stuck,
    written,
)

UNASKED = (events.ConductorExited, events.ConductorStuck, events.DeadlinePassed, events.StopRequested)
DEADLINES = ("start", "restart", "wall_clock", "close", "finalize", "retry", "stop")
NO_BUDGET = replace(PLAN, restarts=0)
LIMITED = replace(PLAN, wall_clock=900)
STALLS = replace(PLAN, stall_timeout=600)


def after(slot, *sent):
    slot.send_all(*sent)
    return slot.state


def states():
    yield "pristine", Pristine()
    yield "pristine, shut down", Pristine(shutdown=True)
    yield "pristine, quarantined", Pristine(stuck=(7, 8))
    yield "starting, nobody started", after(Slot(), assigned())
    yield "starting", starting().state
    yield "starting, limited", starting(LIMITED).state
    yield "starting, one ready", after(starting(), ready(LAKE))
    yield "starting, one missing", after(starting(), ready(LAKE), ready(TASKS))
    yield "starting, on the way back", after(starting(), exited(LAKE), ready(TASKS))
    yield "starting, killed for being late", after(starting(), exited(LAKE), passed("restart", LAKE, 2))
    yield "starting, without budget", after(starting(NO_BUDGET), failed_report(LAKE, "boom"), ready(TASKS))
    yield (
        "starting, all phases ended before",
        after(starting(replace(PLAN, first_phase=3)), ready(LAKE), ready(TASKS)),
    )
    for phase in range(3):
        yield f"running, phase {phase}", running(phase=phase).state
    yield "running, limited", running(LIMITED).state
    yield "running, one part ended badly", after(running(phase=1), ended("tasks", 1, failures=1))
    yield "running, conductor of a part on the way back", after(running(phase=1), exited(TASKS))
    yield "running, all on the way back", after(running(phase=1), exited(TASKS), exited(SIMULATION))
    yield "running, without budget", running(NO_BUDGET, phase=1).state
    yield "running, part not taken", after(running(), not_taken("simulation"))
    yield "running, one silent", after(running(), silent(SIMULATION))
    yield "running, stalled", after(running(STALLS), stalled())
    for flow in get_args(events.Flow):
        yield f"running, asked for {flow}", after(running(phase=1), asked(flow, phase=1))
    yield (
        "running, tasks on the way back when the phase was to end",
        after(running(phase=1), asked("SHUTDOWN", phase=1), exited(TASKS), ended("simulation", 1)),
    )
    yield from paused_states()
    yield "running, to be restarted", after(running(replace(STALLS, on_stall="restart")), stalled())
    yield "running, to fail of a stall", running(replace(STALLS, on_stall="fail")).state
    yield (
        "starting, in a later invocation",
        after(Slot(), assigned(replace(PLAN, incarnations=((TASKS, 1),)))),
    )
    yield "finalizing", finalizing().state
    yield "finalizing, closing", closing().state
    yield "finalizing, closing one", after(closing(), ended("tasks", 1))
    yield "finalizing, retrying", after(finalizing(), not_written())
    yield "finalizing, overdue", after(finalizing(), passed("finalize"))
    yield "finalizing, closing, overdue", after(closing(), passed("finalize"))
    yield "finalizing, shutdown", after(closing(), stop())
    yield "finalizing, urgent shutdown", after(finalizing(), stop(urgent=True))
    yield "finalizing, one stuck", after(running(), stuck(LAKE))
    yield "finalizing, partly gone", after(finalizing(), exited(LAKE), exited(TASKS))
    yield "finalizing, on the way back", after(running(), exited(SIMULATION), abort())
    yield "finalizing, from starting", after(starting(), abort())
    yield "stopping", stopping().state
    yield "stopping, partly gone", after(stopping(), exited(LAKE))
    yield "stopping, one stuck", after(stopping(), stuck(LAKE))
    yield "stopping, shutdown", after(stopping(), stop())
    yield "stopping, interrupted", after(running(phase=1), stop())
    yield "stopping, interrupted while starting", after(Slot(), assigned(), stop())
    yield "stopping, not durable", after(finalizing(), passed("finalize"), passed("finalize"))
    yield "stopping, removing", after(stopping(), *(exited(name) for name in NAMES))
    yield "stopping, past the deadline", after(stopping(), passed("stop"))


def paused_states():
    yield "starting, paused", after(starting(LIMITED), pause())
    yield "running, paused", after(running(LIMITED, phase=1), pause())
    yield "running, paused before a phase", after(running(), pause(), ended("simulation"))
    yield (
        "running, paused when the last phase was to end",
        after(
            *(running(phase=1), asked("SHUTDOWN", phase=1), pause(), exited(TASKS), ended("simulation", 1)),
            ready(TASKS, 2),
        ),
    )
    yield "stopping, paused hard", after(running(phase=1), pause(hard=True))


STATES = dict(states())


def sent():
    """Every event in its variants, all of run r1; another run's are made of them."""
    yield assigned(PLAN)
    yield assigned(replace(PLAN, uid="r2", first_phase=2, restarts=0))
    yield from (abort(), abort(""), stop(), stop(urgent=True), pause(), pause(hard=True), go_on())
    for phase in (0, 1, 2, 9):
        yield from (change(phase=phase, episode=3), change("requeue", phase=phase, task="t"))
    yield from (
        change_plan(PLAN),
        change_plan(replace(PLAN, wall_clock=900, restarts=0), renews=True, tasks=("fit",)),
    )
    for name in DEADLINES:
        yield passed(name, at=1000)
        yield from (passed(name, conductor, n) for conductor in NAMES for n in (1, 2))
    for conductor in (*NAMES, "agent.nobody"):
        for n in (0, 1, 2, 3):
            named = {"run": "r1", "at": 5.0, "conductor": conductor, "incarnation": n}
            yield events.ConductorStarted(**named, pid=1000 + n, ticks=1, boot="b")
            yield events.ConductorReady(**named)
            yield events.ConductorFailed(**named, reason="boom")
            yield from (events.ConductorExited(**named, exit_code=code) for code in (None, 0, 1, -9, -99))
            yield events.ConductorExited(**named, exit_code=-9, forkserver=7)
            yield events.ConductorStuck(**named, pid=1000 + n)
            yield events.ConductorSilent(**named, seconds=12.0)
            for part in ("simulation", "tasks"):
                yield events.PartFailed(**named, phase=1, part=part, reason="busy")
            for flow in get_args(events.Flow):
                yield events.FlowRequested(
                    **named, phase=1, flow=flow, reason="mine", conductors=(LAKE, SIMULATION)
                )
    for phase in (-1, 0, 1, 2, 3):
        for part in ("simulation", "tasks"):
            yield from (ended(part, phase), ended(part, phase, failures=2, first="x"))
            yield not_taken(part, phase)
    yield from (exceeded("steps"), exceeded("memory", 10), folder_lost())
    yield from (stalled(), stalled(since=3.0, at=900.0), moved())
    yield from (written("finished"), written("failed"), written("aborted"), not_written())
    yield from (removed(), removed("/run/x"))
    yield from (gone_at_last(*pids, run="r1") for pids in ((), (7,), (7, 8), (1001,)))


EVENTS = list(sent())
OTHERS = [replace(event, run=run) for event in EVENTS for run in ("r0", "")]


@pytest.mark.parametrize("state_type", [*TABLE])
def test_the_table_has_an_answer_to_every_event_in_every_state(state_type):
    assert set(TABLE[state_type]) == set(events.EVENTS)


def test_the_variants_are_of_every_state_and_every_event():
    assert {type(state) for state in STATES.values()} == set(TABLE)
    assert {type(event) for event in EVENTS} == set(events.EVENTS)
    assert {event.name for event in EVENTS if isinstance(event, events.DeadlinePassed)} == set(DEADLINES)


def test_every_event_class_is_listed_and_named_once():
    defined = {thing for thing in vars(events).values() if isinstance(thing, type)}
    leaves = {thing for thing in defined if issubclass(thing, events.Event) and hasattr(thing, "kind")}
    assert leaves == set(events.EVENTS)
    assert len({event.kind for event in events.EVENTS}) == len(events.EVENTS)
    assert set(events.COMMANDS) <= set(events.EVENTS)


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_every_answer_keeps_the_rules(state):
    for event in [*EVENTS, *OTHERS]:
        answer = advance(state, event)
        match answer:
            case Step():
                rule = TABLE[type(state)][type(event)]
                assert type(answer.state) is type(state) or type(answer.state) in rule.to
                assert all(isinstance(effect, Effect) for effect in answer.effects)
                assert answer.state.waits_for, "somebody will ask"
            case Dropped() | Rejected():
                assert answer.state is state, f"{event} was not taken but changed something"
                assert answer.why
        if isinstance(answer, Rejected):
            assert isinstance(event, events.COMMANDS), f"{event} is no command"
        if isinstance(event, events.COMMANDS):
            assert not isinstance(answer, Dropped), "who commands wants to know"


IN_WORK = {name: state for name, state in STATES.items() if state.run is not None}


@pytest.mark.parametrize("state", IN_WORK.values(), ids=IN_WORK)
def test_an_event_of_another_run_changes_nothing(state):
    for event in OTHERS:
        if not isinstance(event, events.RunAssigned | events.StopRequested):
            assert not isinstance(advance(state, event), Step), event


@pytest.mark.parametrize("state", IN_WORK.values(), ids=IN_WORK)
def test_a_stop_of_the_daemon_is_taken_whichever_run_it_names(state):
    stop = events.StopRequested(run="r0", at=9.0)
    assert advance(state, stop) == advance(state, replace(stop, run="r1"))
    assert isinstance(advance(state, stop), Step)


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_news_of_a_conductor_that_is_not_the_current_one_changes_nothing(state):
    for event in EVENTS:
        if isinstance(event, events.ConductorEvent) and (
            event.incarnation == 0 or event.conductor == "agent.nobody"
        ):
            assert isinstance(advance(state, event), Dropped), event


@pytest.mark.parametrize("state_type", [*TABLE])
@pytest.mark.parametrize("event_type", UNASKED)
def test_what_the_world_does_unasked_has_an_answer_of_its_own_wherever_a_run_is_in_work(
    state_type, event_type
):
    rule = TABLE[state_type][event_type]
    assert rule.handler is not table.refuse
    if state_type is not Pristine or event_type is events.StopRequested:
        assert rule.handler is not table.late


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_stop_is_always_taken(state):
    for event in (stop(), stop(urgent=True)):
        answer = advance(state, event)
        assert isinstance(answer, Step)
        assert answer.state.shutdown


def test_every_arrow_of_the_table_is_walked():
    """Arrows that can't be taken should not be drawn."""
    declared = {
        (source, event, target)
        for source, rules in TABLE.items()
        for event, rule in rules.items()
        for target in rule.to
    }
    walked = set()
    for state in STATES.values():
        for event in EVENTS:
            after_it = advance(state, event).state
            if type(after_it) is not type(state):
                walked.add((type(state), type(event), type(after_it)))
    assert walked == declared


def test_a_transition_that_is_not_declared_is_a_fault_of_the_machine(monkeypatch):
    rows = {**TABLE[Pristine], events.StopRequested: Rule(lambda state, event: Step(running().state))}
    monkeypatch.setattr(table, "TABLE", {**TABLE, Pristine: rows})
    with pytest.raises(
        table.UndeclaredTransition, match=r"pristine answered run.stop_requested with running"
    ):
        advance(Pristine(), stop())


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_states_are_frozen_and_hold_immutable_things_alone(state):
    def walk(thing):
        if is_dataclass(thing):
            assert type(thing).__dataclass_params__.frozen
            for field in fields(thing):
                walk(getattr(thing, field.name))
        elif isinstance(thing, tuple | frozenset):
            for item in thing:
                walk(item)
        else:
            assert thing is None or isinstance(thing, str | int | float | bool)

    walk(state)
    assert isinstance(state, State)


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_the_same_question_has_the_same_answer(state):
    for event in EVENTS:
        assert advance(state, event) == advance(state, event)


def test_each_state_says_what_it_waits_for():
    said_by = {name: STATES[name].waits_for for name in ("starting, one missing", "running, phase 1")}
    assert said_by == {
        "starting, one missing": "conductors to be ready: simulation",
        "running, phase 1": "phase both: simulation and tasks to end",
    }
