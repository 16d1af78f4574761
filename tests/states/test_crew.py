from __future__ import annotations

from dataclasses import replace

import pytest
from state_scenes import LAKE, PLAN, SIMULATION, TASKS, exited, ready, stuck

from states.crew import FIRST_BACK_OFF, LONGEST_BACK_OFF, ConductorStates, obituary
from states.effects import StartConductor, StopConductor, Wake


@pytest.fixture
def crew():
    return ConductorStates.of(PLAN)


def test_a_crew_begins_with_all_members_starting_and_the_whole_budget(crew):
    assert [(m.name, m.kind, m.incarnation, m.standing, m.pid) for m in crew.members] == [
        (LAKE, "environment", 1, "starting", None),
        (SIMULATION, "simulation", 1, "starting", None),
        (TASKS, "task", 1, "starting", None),
    ]
    assert crew.restarts_left == PLAN.restarts
    assert crew.alive == crew.members
    assert not crew.all_ready


@pytest.mark.parametrize(("used", "left"), [(1, 1), (2, 0), (7, 0)])
def test_restarts_of_earlier_invocations_are_used_up(used, left):
    crew = ConductorStates.of(replace(PLAN, restarts_used=used))
    assert crew.restarts_left == left
    assert (crew.gone(LAKE).restart(LAKE, at=0, within=60) is None) == (left == 0)


def test_it_is_all_ready_with_the_last_one(crew):
    crew = crew.ready(LAKE).ready(SIMULATION)
    assert not crew.all_ready
    assert crew.ready(TASKS).all_ready


def test_an_event_of_an_earlier_incarnation_or_of_a_stranger_is_nobodys(crew):
    assert crew.current(exited(LAKE)) == crew.member(LAKE)
    assert crew.current(exited("agent.nobody")) is None
    assert crew.current(exited(LAKE, 0)) is None
    assert crew.gone(LAKE).current(exited(LAKE)) is None
    assert crew.stuck(LAKE).current(exited(LAKE)) is not None, "a stuck one may still die"


def test_only_a_starting_member_is_awaited(crew):
    assert crew.awaited(ready(LAKE)) == crew.member(LAKE)
    assert crew.awaited(ready(LAKE, 2)) is None
    for crew_now in (crew.ready(LAKE), crew.gone(LAKE), crew.stuck(LAKE)):
        assert crew_now.awaited(ready(LAKE)) is None


def test_a_restart_takes_from_the_budget_and_has_a_deadline(crew):
    crew = crew.started(LAKE, 7).said(LAKE, "boom").gone(LAKE)
    crew, effects = crew.restart(LAKE, at=100, within=60)
    assert effects == (
        StartConductor(conductor=LAKE, kind="environment", incarnation=2, delay=FIRST_BACK_OFF),
        Wake(name="restart", at=160 + FIRST_BACK_OFF, conductor=LAKE, incarnation=2),
    )
    again = crew.member(LAKE)
    assert (again.incarnation, again.standing, again.pid, again.last_words) == (2, "starting", None, "")
    assert crew.restarts_left == PLAN.restarts - 1


def test_the_back_off_doubles_for_each_restart_of_the_same_conductor_up_to_a_limit():
    crew = ConductorStates.of(replace(PLAN, restarts=1000))
    delays = []
    for _ in range(1000):
        crew, (start, wake) = crew.gone(LAKE).restart(LAKE, at=0, within=60)
        assert wake.at == start.delay + 60
        delays.append(start.delay)
    assert delays[:8] == [0.25, 0.5, 1, 2, 4, 8, 16, LONGEST_BACK_OFF]
    assert max(delays) == LONGEST_BACK_OFF
    assert crew.restart(LAKE, at=0, within=60) is None


def test_incarnations_go_on_where_an_earlier_invocation_ended_and_the_back_off_begins_anew():
    crew = ConductorStates.of(replace(PLAN, incarnations=((LAKE, 7), ("agent.gone", 2))))
    assert [member.incarnation for member in crew.members] == [8, 1, 1]
    crew, (start, _) = crew.gone(LAKE).restart(LAKE, at=0, within=60)
    assert (start.incarnation, start.delay) == (9, FIRST_BACK_OFF)


def test_one_budget_serves_all_but_each_has_its_own_back_off(crew):
    crew, (first, _) = crew.restart(LAKE, at=0, within=60)
    crew, (second, _) = crew.restart(TASKS, at=0, within=60)
    assert (first.delay, second.delay) == (FIRST_BACK_OFF, FIRST_BACK_OFF)
    assert crew.restart(LAKE, at=0, within=60) is None
    assert crew.restart("agent.nobody", at=0, within=60) is None


def test_the_ladder_begins_with_a_message_for_those_that_can_hear_it(crew):
    crew = crew.ready(LAKE).gone(TASKS)
    assert crew.stop() == (
        StopConductor(conductor=LAKE, incarnation=1, first="message"),
        StopConductor(conductor=SIMULATION, incarnation=1, first="SIGTERM"),
    )
    assert {effect.first for effect in crew.stop(urgent=True)} == {"SIGKILL"}


def test_a_stuck_member_is_not_stopped_again_and_its_pid_is_known(crew):
    crew = crew.started(LAKE, 7).stuck(LAKE)
    assert crew.stuck_pids == (7,)
    assert LAKE not in {effect.conductor for effect in crew.stop()}
    assert crew.gone(LAKE).stuck_pids == ()
    assert crew.stuck(TASKS).stuck_pids == (7,), "what has no pid can't be named"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (exited(TASKS, code=0), "conductor tasks exited with code 0"),
        (exited(TASKS, code=1), "conductor tasks exited with code 1"),
        (exited(TASKS, code=-9), "conductor tasks was killed by SIGKILL"),
        (exited(TASKS, code=-99), "conductor tasks was killed by signal 99"),
        (
            exited(TASKS, code=None, reason="no memory"),
            "conductor tasks could not be started: no memory",
        ),
    ],
)
def test_an_obituary_tells_how_it_died(crew, event, line):
    assert obituary(crew.member(TASKS), event) == line


def test_last_words_say_more_than_the_reason_of_the_exit(crew):
    member = crew.said(TASKS, "ImportError: torch").member(TASKS)
    assert (
        obituary(member, exited(TASKS, code=1, reason="?"))
        == "conductor tasks exited with code 1: ImportError: torch"
    )


def test_a_crew_is_never_changed_in_place(crew):
    before = ConductorStates.of(PLAN)
    crew.started(LAKE, 7)
    crew.ready(LAKE)
    crew.said(LAKE, "boom")
    crew.gone(LAKE)
    crew.stuck(LAKE)
    crew.restart(LAKE, at=0, within=1)
    assert crew == before
    assert crew.current(stuck(LAKE)) is not None
