"""What a run of a task has reported: when it is sent, its sums, its bounds."""

import math
from itertools import pairwise

from governor.tasks.runner_process.run_metrics import SPARING, RunMetrics


def test_reports_are_due_at_most_once_a_second_and_less_often_later():
    metrics = RunMetrics(0.0)
    due = [
        now
        for now in (tenth / 10 for tenth in range(36_000 * 10))
        if metrics.add({"a": now}, now) and metrics.take()
    ]
    assert due[0] == 1.0
    assert min(later - earlier for earlier, later in pairwise(due)) >= 1.0
    assert len(due) < SPARING * (2 + math.log(36_000 / SPARING))


def test_sums_are_since_the_message_before_and_figures_of_the_whole_run():
    metrics = RunMetrics(0.0)
    for value in (4.0, math.inf, 2.0):
        metrics.add({"loss": value}, 0.5)
    sums = metrics.take()["loss"]
    assert (sums.count, sums.mean, sums.low, sums.high, sums.last, sums.others) == (2, 3.0, 2.0, 4.0, 2.0, 1)
    assert metrics.take() == {}
    metrics.add({"loss": math.nan, "kl": 1.0}, 0.6)
    assert metrics.take()["loss"].count == 0
    assert metrics.figures() == {"loss": 2.0, "kl": 1.0, "loss.nonfinite": 2.0}


def test_names_are_bounded():
    metrics = RunMetrics(0.0)
    for number in range(1000):
        metrics.add({f"k{number}": 1.0}, 0.5)
    assert len(metrics.take()) == len(metrics.figures()) == 64
