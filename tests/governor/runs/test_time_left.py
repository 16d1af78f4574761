"""How long a run still takes, from its pace."""

from __future__ import annotations

import pytest

from governor.messages import TimeLeft
from governor.run_file.load import parse
from governor.runs.time_left import SPAN, Mark, Pace


def phases(*sections):
    conductors = {"environments": {"e": {"entry": "m:E"}}, "agents": {"a": {"entry": "m:A"}}}
    named = [{"name": f"p{number}", **section} for number, section in enumerate(sections)]
    return parse({"name": "r", "conductors": conductors, "phases": named}).phases


def simulate(episodes, **more):
    return {"simulate": {"environment": "e", "agents": ["a"], "episodes": episodes}, **more}


def tasks(number):
    return {"tasks": [{"id": "t", "call": "m:f", "repeat": number}]}


def left(*sections, at=10.0, episodes=0, steps=0, tasks_ended=0, worked=10.0):
    pace = Pace()
    pace.begin(Mark(0.0, 0, 0, 0))
    return pace.left(Mark(at, episodes, steps, tasks_ended), phases(*sections), worked=worked)


def test_episodes_at_the_pace_so_far():
    assert left(simulate(100), episodes=20) == TimeLeft(phase=40.0, run=40.0)


def test_later_episodes_are_expected_at_the_same_pace_and_tasks_are_not_known():
    assert left(simulate(100), simulate(10), episodes=20) == TimeLeft(phase=40.0, run=45.0)
    assert left(simulate(100), tasks(3), episodes=20) == TimeLeft(phase=40.0, run=None)
    assert left(tasks(4), tasks_ended=1) == TimeLeft(phase=30.0, run=30.0)


def test_nothing_is_said_before_anything_has_ended():
    assert left(simulate(100)) is None
    assert left(tasks(4)) is None
    assert Pace().left(Mark(1.0, 1, 1, 0), phases(simulate(10)), worked=1.0) is None


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        ([{"steps": 100}], TimeLeft(phase=10.0, run=10.0)),
        ([{"wall_clock": "15s"}], TimeLeft(phase=5.0, run=5.0)),
        ([{"metric": "return", "at_least": 1}], TimeLeft(phase=40.0, run=40.0, at_most=True)),
        ([{"entry": "mine:Rule"}], TimeLeft(phase=40.0, run=40.0, at_most=True)),
    ],
)
def test_the_first_limit_of_a_phase_counts(until, expected):
    assert left(simulate(100, until=until), episodes=20, steps=50) == expected


def test_an_evaluation_may_end_a_phase():
    found = left(simulate(100, evaluate={"every": 10, "at_least": 1}), episodes=20)
    assert found is not None
    assert found.at_most


def test_the_pace_is_that_of_the_last_minute():
    pace = Pace()
    pace.begin(Mark(0.0, 0, 0, 0))
    for second in range(1, 301):  # one a second, later ten
        pace.add(Mark(float(second), second if second <= 200 else 200 + 10 * (second - 200), 0, 0))
    assert len(pace._marks) <= SPAN + 2
    found = pace.left(Mark(300.0, 1200, 0, 0), phases(simulate(2200)), worked=300.0)
    assert found is not None
    assert found.phase == pytest.approx(100.0)


def test_marks_are_at_least_a_second_apart():
    pace = Pace()
    pace.begin(Mark(0.0, 0, 0, 0))
    for number in range(1, 10_000):
        pace.add(Mark(number / 1000, number, 0, 0))
    assert len(pace._marks) <= 11
