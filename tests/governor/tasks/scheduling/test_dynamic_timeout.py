"""The time-out learned from what was seen: the formula, when it begins to hold, and what it does not count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.tasks.api import DynamicTimeout
from governor.tasks.scheduling.dynamic_timeout import TimeoutEstimator

seconds = st.floats(0, 1e5)


def learned(*observed, max_timeout=1000.0, step=0, **config):
    """A warm one that has seen these."""
    durations = TimeoutEstimator(DynamicTimeout(enable=True, **config), max_timeout)
    for each in observed:
        durations.observe(step, each, is_eval=False)
    durations.step_done(step)
    return durations


def test_ratio_times_mean():
    assert learned(1.0, 3.0).limit() == 6.0
    assert learned(1.0, 3.0, ratio=1.5).limit() == 3.0


def test_never_above_the_time_out_asked_for():
    assert learned(500.0).limit() == 1000.0
    assert learned(2.0).limit(4.0) == 4.0
    assert learned(2.0).limit(7.0) == 6.0


def test_off_is_off():
    durations = TimeoutEstimator(DynamicTimeout(enable=False), 1000.0)
    durations.observe(0, 1.0, is_eval=False)
    durations.step_done(0)
    assert durations.limit() == 1000.0
    assert durations.limit(5.0) == 5.0


def test_holds_once_enough_steps_were_fully_observed():
    durations = TimeoutEstimator(DynamicTimeout(enable=True, warmup_min_steps=2), 1000.0)
    durations.observe(0, 1.0, is_eval=False)
    durations.observe(1, 1.0, is_eval=False)
    assert durations.limit() == 1000.0
    durations.step_done(0)
    durations.step_done(0)
    assert durations.limit() == 1000.0, "one step, said twice"
    durations.step_done(1)
    assert durations.limit() == 3.0


def test_a_step_of_which_nothing_was_seen_does_not_count():
    durations = TimeoutEstimator(DynamicTimeout(enable=True), 1000.0)
    durations.step_done("resumed")
    durations.observe(1, 1.0, is_eval=False)
    assert durations.limit() == 1000.0
    durations.step_done(1)
    assert durations.limit() == 3.0


def test_without_a_warm_up_the_first_sub_task_decides():
    durations = TimeoutEstimator(DynamicTimeout(enable=True, warmup_min_steps=0), 1000.0)
    assert durations.limit() == 1000.0
    durations.observe(0, 1.0, is_eval=False)
    assert durations.limit() == 3.0


@pytest.mark.parametrize("percentile", [None, 100.0])
def test_evaluation_is_not_counted(percentile):
    durations = TimeoutEstimator(DynamicTimeout(enable=True, percentile=percentile), 1000.0)
    durations.observe("1/x", 300.0, is_eval=True)
    durations.step_done("1/x")
    durations.observe(1, 1.0, is_eval=False)
    assert durations.limit() == 1000.0, "an evaluation is no step"
    durations.step_done(1)
    assert durations.limit() == 3.0


@given(st.lists(seconds, min_size=1, max_size=60), st.floats(0.1, 10))
def test_equals_the_formula(observed, ratio):
    expected = min(1000.0, ratio * sum(observed) / len(observed))
    assert learned(*observed, ratio=ratio).limit() == pytest.approx(expected)


@given(st.lists(seconds, min_size=1, max_size=60), st.floats(0, 100), st.integers(1, 20))
def test_percentile_of_the_latest(observed, percentile, window):
    found = learned(*observed, percentile=percentile, window=window, ratio=2.0, max_timeout=math.inf).limit()
    assert found == pytest.approx(2 * np.percentile(observed[-window:], percentile))


def test_a_straggler_moves_the_mean_but_not_the_median():
    observed = [1.0] * 9 + [991.0]
    assert learned(*observed).limit() == 300.0
    assert learned(*observed, percentile=50).limit() == 3.0


def test_nothing_grows():
    durations = TimeoutEstimator(
        DynamicTimeout(enable=True, percentile=90, window=16, warmup_min_steps=40), 1000.0
    )
    for step in range(500):
        durations.observe(step, float(step), is_eval=False)
        durations.step_done(step)
    held = [len(v) for v in vars(durations).values() if hasattr(v, "__len__")]
    assert max(held) == 16
    assert durations.limit() == pytest.approx(1000.0)


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_an_impossible_time_is_refused_and_changes_nothing(wrong):
    durations = learned(1.0, percentile=50)
    with pytest.raises(ValueError, match="cannot have taken"):
        durations.observe(0, wrong, is_eval=False)
    assert durations.limit() == 3.0


@pytest.mark.parametrize(
    "config",
    [
        {"ratio": 0.0},
        {"ratio": math.nan},
        {"warmup_min_steps": -1},
        {"percentile": 101.0},
        {"percentile": math.nan},
        {"window": 0},
    ],
)
def test_senseless_settings_are_refused_by_name(config):
    with pytest.raises(ValueError, match=next(iter(config))):
        TimeoutEstimator(DynamicTimeout(enable=True, **config), 1000.0)


def test_all_faults_are_told_at_once():
    with pytest.raises(ValueError, match=r"max_timeout.*ratio.*window"):
        TimeoutEstimator(DynamicTimeout(ratio=-1.0, window=0), 0.0)


def test_tells_its_state():
    assert repr(learned(1.0)) == "<TimeoutEstimator 1 sub-tasks, warm, limit 3 s>"
    assert "0 of 1 steps" in repr(TimeoutEstimator(DynamicTimeout(), 5.0))


def test_the_floor_holds_where_the_mean_is_pulled_down():
    durations = TimeoutEstimator(DynamicTimeout(enable=True, warmup_min_steps=0, floor=2.0), 100.0)
    durations.observe(1, 0.001, False)
    assert durations.limit() == 2.0
    assert durations.limit(1.5) == 1.5, "a shorter time-out stays"
    durations.observe(1, 9.999, False)
    assert durations.limit() == 15.0
