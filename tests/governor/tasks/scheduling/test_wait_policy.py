"""How long a caller waits for a batch: each rule, and that the alarm rings whenever time alone changes the answer."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.tasks.scheduling.wait_policy import WaitPolicy, min_wait_num


def policy(**fields):
    return WaitPolicy(**({"total": 10, "min_num": 8, "wait_after_min": 5.0, "deadline": 100.0} | fields))


def test_all_have_ended():
    assert policy().check(ended=10, succeeded=0, now=0.0) == "all"
    assert policy().check(ended=9, succeeded=9, now=0.0) is None


def test_an_empty_batch_is_over_at_once():
    assert policy(total=0).check(ended=0, succeeded=0, now=0.0) == "all"


def test_all_goes_before_the_deadline():
    assert policy().check(ended=10, succeeded=2, now=500.0) == "all"


def test_enough_have_succeeded_and_the_rest_had_its_chance():
    wait = policy()
    assert wait.check(ended=7, succeeded=7, now=10.0) is None
    assert wait.next_alarm() == 100.0
    assert wait.check(ended=8, succeeded=8, now=20.0) is None
    assert wait.next_alarm() == 25.0
    assert wait.check(ended=9, succeeded=9, now=24.0) is None
    assert wait.next_alarm() == 25.0, "counted from when min_num was reached"
    assert wait.check(ended=9, succeeded=9, now=25.0) == "enough"


def test_failures_are_not_enough():
    wait = policy(wait_after_min=0.0)
    assert wait.check(ended=9, succeeded=0, now=0.0) is None
    assert wait.check(ended=9, succeeded=0, now=100.0) == "timeout"


def test_unless_every_end_counts():
    assert policy(wait_after_min=0.0, count="ended").check(ended=8, succeeded=0, now=0.0) == "enough"


def test_without_a_pause_enough_is_enough():
    assert policy(wait_after_min=0.0).check(ended=8, succeeded=8, now=3.0) == "enough"


def test_time_is_up_with_too_few():
    wait = policy()
    assert wait.check(ended=7, succeeded=7, now=99.9) is None
    assert wait.check(ended=7, succeeded=7, now=100.0) == "timeout"


def test_time_is_up_with_enough_within_the_pause():
    wait = policy()
    assert wait.check(ended=8, succeeded=8, now=98.0) is None
    assert wait.next_alarm() == 100.0
    assert wait.check(ended=8, succeeded=8, now=100.0) == "enough"


def test_without_min_num_all_are_waited_for():
    wait = policy(min_num=None, wait_after_min=0.0)
    assert wait.check(ended=9, succeeded=9, now=0.0) is None
    assert wait.check(ended=9, succeeded=9, now=100.0) == "timeout"


def test_more_than_there_are_means_all():
    wait = policy(min_num=50, wait_after_min=0.0)
    assert wait.check(ended=9, succeeded=9, now=0.0) is None
    assert wait.check(ended=10, succeeded=9, now=0.0) == "all"


def test_zero_is_reached_at_the_first_look():
    wait = policy(min_num=0)
    assert wait.check(ended=0, succeeded=0, now=3.0) is None
    assert wait.next_alarm() == 8.0


@pytest.mark.parametrize("never", [None, math.inf])
def test_without_a_deadline_no_alarm(never):
    wait = policy(deadline=never, wait_after_min=math.inf)
    assert wait.check(ended=9, succeeded=9, now=1e12) is None
    assert wait.next_alarm() is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"total": -1},
        {"min_num": -1},
        {"wait_after_min": -0.1},
        {"wait_after_min": math.nan},
        {"deadline": math.nan},
    ],
)
def test_senseless_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        policy(**wrong)


looks = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.floats(0, 10)), max_size=30)


@given(
    looks=looks,
    total=st.integers(0, 20),
    min_num=st.none() | st.integers(0, 25),
    wait_after_min=st.floats(0, 20),
    deadline=st.none() | st.floats(0, 100),
    count=st.sampled_from(["succeeded", "ended"]),
)
def test_any_story_obeys_the_rules(*, looks, total, min_num, wait_after_min, deadline, count):
    wait = WaitPolicy(
        total=total, min_num=min_num, wait_after_min=wait_after_min, deadline=deadline, count=count
    )
    ended = succeeded = 0
    now = 0.0
    reached = None
    for good, bad, pause in looks:
        good = min(good, total - ended)  # noqa: PLW2901  # a task ends once
        bad = min(bad, total - ended - good)  # noqa: PLW2901
        ended, succeeded, now = ended + good + bad, succeeded + good, now + pause
        if min_num is not None and {"succeeded": succeeded, "ended": ended}[count] >= min(min_num, total):
            reached = now if reached is None else reached
        late = deadline is not None and now >= deadline
        had_its_chance = reached is not None and (late or now >= reached + wait_after_min)
        expected = "all" if ended == total else "enough" if had_its_chance else "timeout" if late else None
        assert wait.check(ended=ended, succeeded=succeeded, now=now) == expected
        if expected is not None:
            break
        alarm = wait.next_alarm()
        assert alarm == min(
            (t for t in (deadline, None if reached is None else reached + wait_after_min) if t is not None),
            default=None,
        )
        if alarm is not None:
            before = math.nextafter(alarm, -math.inf)
            assert before < now or wait.check(ended=ended, succeeded=succeeded, now=before) is None
            assert alarm > now
            assert wait.check(ended=ended, succeeded=succeeded, now=alarm) is not None


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
