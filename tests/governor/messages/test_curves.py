"""Curves: bounded, and a function of the set of their values alone."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.messages import curves
from governor.messages.conductor import ReportedSums
from governor.messages.curves import BUCKETS, HUGE, WINDOWS, Curve, Window

VALUES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1e3, 1e3),
    st.integers(-50, 50).map(float),
    st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 1e289, math.nan, math.inf, -math.inf]),
)
ROWS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 3), st.integers(0, 5_000)), VALUES, st.integers(0, 10**9), st.floats(0, 1e6)
    ),
    max_size=150,
)


def of(rows: list[tuple[int, float, int, float]]) -> Curve:
    curve = Curve()
    for number, (episode, value, step, at) in enumerate(rows):
        curve.add(value, episode=episode, step=step, at=at)
        if number % 7 == 6:
            curve.fold()
    return curve


def packed(curve: Curve) -> bytes:
    """The curve as bytes, whatever the order of its windows."""
    return msgspec.msgpack.encode((curve.in_order, curve.shift, curve.unusable))


def restored(curve: Curve) -> Curve:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(curve), type=Curve)


@given(rows=ROWS, other=st.randoms(use_true_random=False), cut=st.integers(0, 150))
def test_order_batches_restarts_and_merges_change_nothing(
    rows: list[tuple[int, float, int, float]], other: random.Random, cut: int
) -> None:
    expected = packed(of(rows))
    shuffled = other.sample(rows, len(rows))
    assert packed(of(shuffled)) == expected

    restarted = restored(of(shuffled[:cut]))
    if other.random() < 0.5:
        restarted.fold()
    for episode, value, step, at in shuffled[cut:]:
        restarted.add(value, episode=episode, step=step, at=at)
    assert packed(restarted) == expected

    merged, rest = of(shuffled[:cut]), of(shuffled[cut:])
    before = msgspec.msgpack.encode(rest)
    merged.merge(rest)
    assert packed(merged) == expected
    assert msgspec.msgpack.encode(rest) == before


@given(rows=ROWS)
def test_windows_tell_the_truth_of_their_values(rows: list[tuple[int, float, int, float]]) -> None:
    curve = of(rows)
    usable = [row for row in rows if -HUGE < row[1] < HUGE]
    assert curve.count == len(usable)
    assert curve.unusable == len(rows) - len(usable)
    for window in curve.in_order:
        inside = [row for row in usable if row[0] >> curve.shift == window.first_key >> curve.shift]
        values = [row[1] for row in inside]
        assert (window.count, window.low, window.high) == (len(inside), min(values), max(values))
        assert sum(curves._unpack(window.buckets).values()) == window.count
        assert window.mean == math.fsum(values) / len(values)
        assert (window.first_key, window.last_key) == (min(r[0] for r in inside), max(r[0] for r in inside))
        assert (window.first_step, window.last_step) == (min(r[2] for r in inside), max(r[2] for r in inside))
        assert (window.first_at, window.last_at) == (min(r[3] for r in inside), max(r[3] for r in inside))
        found = window.quantiles((0.0, 0.1, 0.5, 0.9, 1.0))
        assert (found[0], found[-1]) == (window.low, window.high)
        assert sorted(found) == [*found]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_means_are_exact_in_whatever_order(order: tuple[int, ...]) -> None:
    values = (1e16, 1.0, -1e16)
    curve = Curve()
    for index in order:
        curve.add(values[index], episode=0, step=0, at=0.0)
        curve.fold()
    assert curve.in_order[0].mean == 1 / 3


def test_a_curve_is_bounded_whatever_the_number_of_its_values() -> None:
    draws = random.Random(1)
    curve, sizes = Curve(), []
    for episode in range(200_000):
        curve.add(draws.gauss(0, 1), episode=episode, step=episode * 200, at=episode / 100)
        if episode in (20_000, 199_999):
            sizes.append(len(msgspec.msgpack.encode(curve)))
    assert WINDOWS // 2 <= len(curve.in_order) <= WINDOWS
    assert sizes[1] < 1.6 * sizes[0]
    assert sizes[1] < 40_000


def test_keys_far_from_zero_have_windows_as_narrow_as_others() -> None:
    curve = of([(10**9 + n, float(n), n, 0.0) for n in range(100)])
    assert [window.first_key for window in curve.in_order] == [10**9 + n for n in range(100)]


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("normal", lambda draws: draws.gauss(0, 1)),
        ("offset", lambda draws: 1e6 + draws.gauss(0, 1)),
        ("negative", lambda draws: -draws.expovariate(1)),
        ("tail", lambda draws: draws.lognormvariate(0, 1)),
        ("integers", lambda draws: float(draws.randrange(500))),
        ("outlier", lambda draws: draws.random() if draws.random() < 0.999 else 1e9),
    ],
)
def test_quantiles_are_within_a_bucket(name: str, draw: object) -> None:
    draws = random.Random(name)
    values = sorted(draw(draws) for _ in range(20_000))  # type: ignore[operator]
    window = Window.of([0], values, [0], [0.0])
    assert len(curves._unpack(window.buckets)) <= BUCKETS
    width = 2.0**window.level
    spread = values[int(0.9 * len(values))] - values[int(0.1 * len(values))]
    for share, found in zip(curves.QUANTILES, window.quantiles(), strict=True):
        assert abs(found - values[int(share * len(values))]) <= width
    assert width < spread


def test_quantiles_of_few_different_numbers_are_these() -> None:
    window = Window.of([0], [0.0] * 6 + [1.0] * 3 + [2.5], [0], [0.0])
    assert window.quantiles((0.0, 0.1, 0.5, 0.75, 0.9, 1.0)) == (0.0, 0.0, 0.0, 1.0, 1.0, 2.5)


def test_values_without_an_episode_are_by_step() -> None:
    curve = Curve()
    for step in range(1000, 2000, 100):
        curve.add(0.5, episode=None, step=step, at=1.0)
    assert curve.by_step
    assert [window.first_key for window in curve.in_order] == [*range(1000, 2000, 100)]


FINITE = st.floats(-1e9, 1e9)


@st.composite
def sums(draw: st.DrawFn) -> ReportedSums:
    values = draw(st.lists(FINITE, min_size=1, max_size=9))
    mean = min(max(math.fsum(values) / len(values), min(values)), max(values))
    others, before = draw(st.integers(0, 2)), draw(st.integers(0, 1000))
    return ReportedSums(len(values), mean, min(values), max(values), values[-1], others, before, 0.5)


@given(reported=st.lists(sums(), min_size=1, max_size=200), other=st.randoms(use_true_random=False))
def test_what_tasks_report_is_a_curve_by_step_whatever_the_order(
    reported: list[ReportedSums], other: random.Random
) -> None:
    made: list[Curve] = []
    for order in (reported, other.sample(reported, len(reported))):
        made.append(Curve())
        size = other.randint(1, len(order))
        for start in range(0, len(order), size):
            made[-1].add_sums(order[start : start + size])
    assert packed(made[0]) == packed(made[1])
    curve = made[0]
    assert curve.by_step
    assert len(curve.in_order) <= WINDOWS
    assert (curve.count, curve.unusable) == (sum(e.count for e in reported), sum(e.others for e in reported))
    for window in curve.in_order:
        inside = [
            each for each in reported if (each.before + 1) >> curve.shift == window.first_step >> curve.shift
        ]
        assert (window.low, window.high) == (min(e.low for e in inside), max(e.high for e in inside))
        mean = math.fsum(e.mean * e.count for e in inside) / window.count
        assert window.mean == pytest.approx(mean, rel=1e-9, abs=1e-3)
        found = window.quantiles((0.0, 0.5, 1.0))
        assert (found[0], found[-1]) == (window.low, window.high)
        assert sorted(found) == [*found]


@pytest.mark.parametrize("value", [1e308, -1e308, HUGE])
def test_huge_values_of_tasks_are_counted_alone(value: float) -> None:
    curve = Curve()
    curve.add_sums(
        [ReportedSums(3, value, value, value, value), ReportedSums(0, 0.0, 0.0, 0.0, 0.0, others=2)]
    )
    assert (curve.count, curve.unusable) == (0, 5)
