"""How long a caller waits for a batch: each rule, and that the alarm rings whenever time alone changes the answer."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.tasks.scheduling.wait_policy import WaitPolicy, min_wait_num


def policy(**fields):
    return WaitPolicy(**({"min_num": 8, "wait_after_min": 5.0, "deadline": 100.0} | fields))


def test_enough_have_succeeded_and_the_rest_had_its_chance():
    wait = policy()
    assert wait.check(7, 10.0) is None
    assert wait.next_alarm() == 100.0
    assert wait.check(8, 20.0) is None
    assert wait.next_alarm() == 25.0
    assert wait.check(9, 24.0) is None
    assert wait.next_alarm() == 25.0, "counted from when min_num was reached"
    assert wait.check(9, 25.0) == "enough"


def test_failures_are_not_enough():
    wait = policy(wait_after_min=0.0)
    assert wait.check(0, 0.0) is None
    assert wait.check(0, 100.0) == "timeout"


def test_without_a_pause_enough_is_enough():
    assert policy(wait_after_min=0.0).check(8, 3.0) == "enough"


def test_time_is_up_with_too_few():
    wait = policy()
    assert wait.check(7, 99.9) is None
    assert wait.check(7, 100.0) == "timeout"


def test_time_is_up_with_enough_within_the_pause():
    wait = policy()
    assert wait.check(8, 98.0) is None
    assert wait.next_alarm() == 100.0
    assert wait.check(8, 100.0) == "enough"


def test_without_min_num_all_are_waited_for():
    wait = policy(min_num=None, wait_after_min=0.0)
    assert wait.check(9, 0.0) is None
    assert wait.check(9, 100.0) == "timeout"


def test_zero_is_reached_at_the_first_look():
    wait = policy(min_num=0)
    assert wait.check(0, 3.0) is None
    assert wait.next_alarm() == 8.0


def test_without_a_deadline_no_alarm():
    wait = policy(deadline=math.inf, wait_after_min=math.inf)
    assert wait.check(9, 1e12) is None
    assert wait.next_alarm() == math.inf


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_num": -1},
        {"wait_after_min": -0.1},
        {"wait_after_min": math.nan},
        {"deadline": math.nan},
    ],
)
def test_senseless_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        policy(**wrong)


looks = st.lists(st.tuples(st.integers(0, 2), st.floats(0, 10)), max_size=30)


@given(
    looks=looks,
    min_num=st.none() | st.integers(0, 25),
    wait_after_min=st.floats(0, 20),
    deadline=st.floats(0, 100) | st.just(math.inf),
)
def test_any_story_obeys_the_rules(*, looks, min_num, wait_after_min, deadline):
    wait = WaitPolicy(min_num=min_num, wait_after_min=wait_after_min, deadline=deadline)
    counted, now = 0, 0.0
    enough_at = math.inf
    for more, pause in looks:
        counted, now = counted + more, now + pause
        if min_num is not None and counted >= min_num:
            enough_at = min(enough_at, now + wait_after_min)
        late = now >= deadline
        had_its_chance = enough_at < math.inf and (late or now >= enough_at)
        expected = "enough" if had_its_chance else "timeout" if late else None
        assert wait.check(counted, now) == expected
        if expected is not None:
            break
        alarm = wait.next_alarm()
        assert alarm == min(deadline, enough_at)
        if alarm < math.inf:
            before = math.nextafter(alarm, -math.inf)
            assert before < now or wait.check(counted, before) is None
            assert alarm > now
            assert wait.check(counted, alarm) is not None


@pytest.mark.parametrize(
    ("total", "ratio", "expected"),
    [
        (10, 0.1, 9),
        (10, 0.0, 10),
        (10, 1.0, 0),
        (10, 0.95, 1),
        (3, 1 / 3, 2),
        (7, 0.3, 5),
        (0, 0.5, 0),
        (1, 0.999, 1),
        (100, 0.07, 93),
    ],
)
def test_min_wait_num(total, ratio, expected):
    assert min_wait_num(total, ratio) == expected


@given(st.integers(0, 10**7), st.integers(1, 1000), st.data())
def test_min_wait_num_is_exact_for_every_fraction(total, below, data):
    above = data.draw(st.integers(0, below))
    assert min_wait_num(total, above / below) == math.ceil(total * (1 - Fraction(above, below)))


@pytest.mark.parametrize(("total", "ratio"), [(-1, 0.5), (1, -0.1), (1, 1.1), (1, math.nan)])
def test_min_wait_num_refuses(total, ratio):
    with pytest.raises(ValueError, match="must"):
        min_wait_num(total, ratio)
