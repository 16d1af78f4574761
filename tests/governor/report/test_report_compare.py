"""Several runs side by side."""

import pytest

from governor.confidence import interval, student_t
from governor.report.compare import compare
from tests.support.pages.report_documents import run_document


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    # Two-sided 95 %: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
    [
        (1, 12.706),
        (2, 4.303),
        (3, 3.182),
        (4, 2.776),
        (5, 2.571),
        (9, 2.262),
        (10, 2.228),
        (30, 2.042),
        (100, 1.984),
    ],
)
def test_quantiles_of_student_are_those_of_the_tables(degrees, quantile):
    assert student_t(degrees) == pytest.approx(quantile, abs=5e-4)


def test_the_interval_of_a_mean():
    # By hand: mean 2, s = 1, n = 3: 2 ± 4.3027 / sqrt(3).
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, -0.48414, 4.48414), abs=1e-4)
    assert interval([1.0]) == (None, None, None)


def test_one_run_has_nothing_to_be_compared_with():
    assert compare([run_document()]) is None


def test_runs_that_differ_in_their_seed_are_a_group():
    runs = [run_document(f"u{seed}", seed=seed, metrics={"m": float(seed)}) for seed in (1, 2, 3)]
    found = compare(runs)
    [metric] = found.metrics
    assert (metric.values, metric.n, metric.group) == ([1.0, 2.0, 3.0], 3, "1 (3 seeds)")
    assert metric.low < metric.mean == 2.0 < metric.high
    assert [(each.path, each.values) for each in found.differences] == [("seed", ["1", "2", "3"])]


def test_runs_with_other_settings_are_other_groups():
    one, other = run_document("u1", seed=1), run_document("u2", seed=2)
    other.run_file = "name: lake\nseed: 2\nphases:\n- {name: train, episodes: 5}\n"
    found = compare([one, other])
    assert [(metric.values, metric.n) for metric in found.metrics] == [([0.5, None], 1), ([None, 0.5], 1)]
    assert {each.path: each.values for each in found.differences} == {
        "seed": ["1", "2"],
        "phases[train].name": ["", "train"],
        "phases[train].episodes": ["", "5"],
    }


def test_a_metric_that_is_not_finite_is_left_out():
    runs = [
        run_document(f"u{seed}", seed=seed, metrics={"m": value})
        for seed, value in ((1, 1.0), (2, float("nan")))
    ]
    [metric] = compare(runs).metrics
    assert (metric.values, metric.n, metric.mean) == ([1.0, None], 1, None)
