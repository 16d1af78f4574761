"""Which conductors are silent, which time does not count; whether a run makes progress."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.messages import Until
from governor.run_file.load import parse
from governor.runs.liveness import (
    LATE_SECONDS,
    USER_CODE_SECONDS,
    Liveness,
    Sample,
    Stall,
    silence_limit,
)

SILENCE, INTERVAL = 10.0, 2.0


class World:
    """One conductor or more, beaten every two seconds."""

    def __init__(self):
        self.now = 100.0
        self.liveness = Liveness(silence=SILENCE, interval=INTERVAL, now=self.now)

    def check(
        self, *, stopped=False, silence_limit=SILENCE, broker=True, after=INTERVAL, answered=(), incarnation=1
    ):
        """Returns the silent conductors; `answered` have answered just before."""
        self.now += after
        for name in answered:
            self.liveness.answered(name, incarnation, 0, self.now)
        seen = [
            Sample(conductor=name, incarnation=incarnation, stopped=stopped, silence_limit=silence_limit)
            for name in ("a", "b")
        ]
        silent, self.counted = self.liveness.check(seen, broker=broker, now=self.now)
        return [each.conductor for each, _ in silent]

    def beats(self, count, **how):
        return [name for _ in range(count) for name in self.check(**how)]


@pytest.fixture
def world():
    made = World()
    made.check()
    return made


def test_a_conductor_that_does_not_answer_is_silent_after_a_time_and_reported_once(world):
    assert world.beats(4, answered="b") == []
    assert world.check(answered="b") == ["a"]
    assert world.beats(9, answered="b") == []


def test_the_next_incarnation_begins_anew(world):
    assert world.beats(5, answered="b") == ["a"]
    assert world.beats(5, answered="b", incarnation=2) == []
    assert world.check(answered="b", incarnation=2) == ["a"]


def test_an_answer_of_an_earlier_incarnation_is_no_sign_of_life(world):
    world.check(incarnation=2)
    for _ in range(4):
        world.liveness.answered("a", 1, 0, world.now)
        world.check(answered="b", incarnation=2)
    assert world.check(answered="b", incarnation=2) == ["a"]


@pytest.mark.parametrize("silence_limit", [60.0, inf])
def test_user_code_may_hold_a_process_up_for_its_own_time_but_not_one_that_has_stopped(world, silence_limit):
    assert world.beats(29, answered="b", silence_limit=silence_limit) == []
    assert world.check(answered="b", silence_limit=silence_limit) == ([] if silence_limit == inf else ["a"])
    world = World()
    world.beats(9, answered="b", silence_limit=silence_limit)
    assert world.beats(5, answered="b", silence_limit=silence_limit, stopped=True) == [], (
        "it was not stopped all that time"
    )
    assert world.check(answered="b", silence_limit=silence_limit, stopped=True) == ["a"]


def test_a_process_that_continues_after_a_stop_has_all_its_time_to_answer(world):
    assert world.beats(5, stopped=True) == []
    assert world.beats(5) == []
    assert world.beats(1) == ["a", "b"]


def test_time_without_a_broker_is_not_counted(world):
    assert world.beats(100, broker=False) == []
    assert not world.counted
    assert world.beats(4) == []
    assert world.counted
    assert world.beats(1) == ["a", "b"]


def test_a_daemon_that_was_late_has_observed_no_silence(world):
    world.beats(4)
    assert world.check(after=INTERVAL + LATE_SECONDS + 60) == []
    assert not world.counted
    assert world.beats(4) == []
    assert world.beats(1) == ["a", "b"]


beats = st.lists(
    st.fixed_dictionaries(
        {
            "stopped": st.booleans(),
            "broker": st.sampled_from([True, True, True, False]),
            "after": st.sampled_from([INTERVAL, INTERVAL, INTERVAL, INTERVAL + 0.9, 2.0 * INTERVAL, 500.0]),
            "answered": st.sampled_from(["", "", "a", "b", "ab"]),
            "silence_limit": st.sampled_from([SILENCE, 25.0, inf]),
        }
    ),
    max_size=60,
)


@given(beats)
def test_a_conductor_without_time_to_answer_is_never_silent(sequence):
    """`quiet` is the time that counts: seen alike at each check, unheard, with a broker and a daemon in time."""
    world = World()
    quiet = dict.fromkeys("ab", 0.0)
    stopped, reported, known = None, set(), False
    for each in sequence:
        silent = world.check(**each)
        counts = known and each["broker"] and each["after"] <= INTERVAL + LATE_SECONDS
        for name in "ab":
            anew = not counts or name in each["answered"] or each["stopped"] != stopped
            quiet[name] = 0.0 if anew else quiet[name] + each["after"]
            due = quiet[name] >= (SILENCE if each["stopped"] else each["silence_limit"])
            assert (name in silent) == (due and name not in reported)
            reported |= {name} if due else set()
        stopped, known = each["stopped"], True


def test_it_moves_when_a_conductor_tells_of_progress(world):
    for count, changes in [(5, 0), (5, 0), (6, 1), (2, 2)]:
        world.liveness.answered("a", 1, count, world.now)
        assert world.liveness.changes == changes
    world.liveness.answered("nobody", 1, 7, world.now)
    world.check(incarnation=2)
    world.liveness.answered("a", 2, 0, world.now)
    assert world.liveness.changes == 2, "a new one begins to count"


# -- progress --------------------------------------------------------------------------------------------------


def test_a_run_stalls_after_its_time_and_resumes_and_each_is_reported_once():
    stall = Stall(now=0)

    def check(count, now, *, at_work=True, counts=True):
        return stall.check(count, timeout=60, at_work=at_work, counts=counts, now=now)

    assert [check(3, 10), check(3, 69), check(3, 70), check(3, 71)] == [None, None, "stalled", None]
    assert stall.since == 10
    assert check(3, 80, counts=False) is None
    assert stall.since == 10, "it has stalled since then, whatever came after"
    assert [check(4, 90), check(5, 91)] == ["resumed", None]
    assert check(5, 150, counts=False) is None
    assert [check(5, 151), check(5, 210)] == [None, "stalled"], "what did not count is not its own fault"
    assert check(5, 211, at_work=False) is None
    assert check(5, 271) == "stalled"


def test_without_a_timeout_nothing_stalls():
    stall = Stall(now=0)
    assert stall.check(0, timeout=None, at_work=True, counts=True, now=1e9) is None


# -- what user code may take -----------------------------------------------------------------------------------


def run_of(**simulate):
    section = {"environment": "e", "agents": ["a"], "episodes": 1, **simulate}
    agents = {"a": {"entry": "m:A"}, "idle": {"entry": "m:A"}}
    agents["model"] = {"entry": "openai:m", "params": {"base_url": "http://127.0.0.1:1"}}
    return parse(
        {
            "name": "r",
            "conductors": {
                "environments": {"e": {"entry": "m:E"}, "other": {"entry": "m:E"}},
                "agents": agents,
            },
            "phases": [
                {"name": "p", "simulate": section},
                {"name": "q", "tasks": [{"id": "t", "call": "m:f"}]},
            ],
            "deadlines": {"liveness": "8s"},
        }
    )


@pytest.mark.parametrize(
    ("simulate", "held"),
    [
        ({"episode_timeout": 300.0}, {"environment.e": 308.0, "agent.a": 308.0}),
        ({"episode_timeout": 3.0}, dict.fromkeys(("environment.e", "agent.a"), 8 + USER_CODE_SECONDS)),
        ({}, {"environment.e": inf, "agent.a": inf}),
        ({"transport": "in_process", "episode_timeout": 300.0}, {"simulation": 308.0}),
        ({"transport": "in_process", "agents": ["model"]}, {}),
        ({"transport": "ray", "episode_timeout": 300.0}, {}),
    ],
)
def test_who_runs_user_code_has_the_time_of_an_episode_and_the_others_have_none(simulate, held):
    run = run_of(**simulate)
    names = ("environment.e", "environment.other", "agent.a", "agent.idle", "simulation", "tasks")
    assert {name: silence_limit(run, name, 0) for name in names} == {**dict.fromkeys(names, 8.0), **held}
    assert {silence_limit(run, name, 1) for name in names} == {8.0}


@pytest.mark.parametrize(("transport", "driver"), [("conductors", "simulation"), ("ray", "tasks")])
def test_conditions_of_the_user_are_user_code_of_the_process_that_drives_the_simulation(transport, driver):
    run = run_of(transport=transport, episode_timeout=3.0)
    asked = run.phases[0].model_copy(update={"until": (Until(entry="m:Rule"),)})
    run = run.model_copy(update={"phases": (asked, run.phases[1])})
    held = {name for name in ("simulation", "tasks") if silence_limit(run, name, 0) == 8 + USER_CODE_SECONDS}
    assert held == {driver}
