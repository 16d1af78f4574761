"""Running figures: what they say of episodes, in any split of them over processes, and how large they are."""

import math
from statistics import fmean, pstdev

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.episodes.rules.statistics import MOST_METRICS, PhaseStatistics, summarize
from governor.messages import Checkpoint, EpisodeRecord, Evaluate, Plateau, StartSimulation, Until, encode
from governor.messages.curves import CURVES
from governor.messages.figures import PhaseFigures, Spread

VALUES = st.floats(-1e6, 1e6)
COMMAND = StartSimulation(
    phase=0, name="p", mode="train", environment="e", agents=("a",), episodes=60, workers=2, max_steps=None,
    episode_timeout=None, seed=0, until=(Until(metric="return", at_least=9e5, average_over=7), Until(steps=10_000)),
    evaluate=Evaluate(every=10, episodes=3, at_least=5e5, consecutive=2, plateau=Plateau(patience=2, window=3)),
    checkpoint=Checkpoint(every=15),
)  # fmt: skip


@st.composite
def episodes(draw):
    """Of a phase, in the order of its stages; any outcome, any worker, some left out as after a resume."""
    found = []
    order = [
        each
        for first in range(0, 60, 10)
        for each in (*range(first, first + 10), *range(60 + first // 10 * 3, 63 + first // 10 * 3))
    ]
    for index in order[: draw(st.integers(0, len(order)))]:
        if draw(st.integers(0, 9)) == 0:
            continue
        outcome = draw(st.sampled_from(["terminated", "terminated", "truncated", "failed", "cancelled"]))
        number = 0 if index < 60 else (index - 60) // 3 + 1
        found.append(
            EpisodeRecord(
                index=index, worker=draw(st.integers(0, 1)), seed=0, outcome=outcome, value=draw(VALUES), steps=index % 4,
                seconds=0.1, values={"left": draw(VALUES)} if index % 2 else {}, evaluation=number, reason=outcome,
                metrics={"loss": draw(VALUES)} if index % 3 else {"loss.nonfinite": 1.0},
            )
        )  # fmt: skip
    return found


def figures_of(records, known=None):
    statistics = PhaseStatistics(COMMAND, known)
    flows = [statistics.add(record) for record in records]
    return statistics, flows


@given(episodes(), st.integers(0, 80))
def test_it_is_all_the_same_where_a_process_ended(records, cut):
    whole, flows = figures_of(records)
    before, flows_before = figures_of(records[:cut])
    stored = msgspec.msgpack.decode(encode(before.figures), type=PhaseFigures)
    after, flows_after = figures_of(records[cut:], stored)
    assert encode(after.figures) == encode(whole.figures), "bit for bit"
    assert flows_before + flows_after == flows
    assert (whole.flow == "CONTINUE") == (set(flows) <= {"CONTINUE"})


@given(episodes())
def test_its_figures_are_those_of_the_records(records):
    figures = figures_of(records)[0].figures
    training = [each for each in records if not each.evaluation]
    returns = [each.value for each in training if each.outcome in {"terminated", "truncated"}]
    metrics = summarize(figures)
    assert [*figures.ended] == sorted(each.index for each in records)
    assert metrics["episodes_ended"] == len(training)
    assert metrics["steps_total"] == sum(each.steps for each in training)
    assert figures.evaluated == len(records) - len(training)
    assert figures.bad == sum(each.outcome == "failed" for each in records)
    assert ("return_mean" in metrics) == bool(returns)
    if returns:
        assert metrics["return_mean"] == pytest.approx(fmean(returns), rel=1e-12, abs=1e-9)
        assert metrics["return_std"] == pytest.approx(pstdev(returns), rel=1e-6, abs=1e-6)
        assert (metrics["return_min"], metrics["return_max"]) == (min(returns), max(returns))


def test_their_size_does_not_grow():
    sizes = []
    statistics = PhaseStatistics(msgspec.structs.replace(COMMAND, episodes=10**6, evaluate=None))
    for index in range(20_480):
        statistics.add(
            EpisodeRecord(
                index=index,
                worker=index % 2,
                seed=index,
                outcome="terminated",
                value=1.0,
                steps=1,
                seconds=0.1,
            )
        )
        if index in {1_279, 20_479}:
            sizes.append(len(encode(statistics.figures)))
    assert sizes[1] < 1.1 * sizes[0], "the numbers themselves have more digits"


def test_curves_are_of_complete_episodes_and_evaluations_have_their_own():
    statistics = PhaseStatistics(COMMAND)
    for index in range(12):
        statistics.add(
            EpisodeRecord(
                index=index if index < 10 else 50 + index,
                worker=0,
                seed=0,
                outcome="failed" if index == 3 else "terminated",
                value=float(index),
                steps=2,
                seconds=0.5,
                values={"left": 1.0},
                metrics={"loss": 0.25} if index != 5 else {"loss.nonfinite": 1.0, "never.nonfinite": 1.0},
                evaluation=int(index >= 10),
            )
        )
    curves = statistics.figures.curves
    assert sorted(curves) == [
        *("evaluation.loss", "evaluation.return", "evaluation.return.left", "evaluation.steps"),
        *("loss", "loss.nonfinite", "never", "never.nonfinite", "return", "return.left", "steps"),
    ]
    assert [window.first_key for window in curves["return"].in_order] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    last = curves["return"].in_order[-1]
    assert (last.mean, last.first_step, last.first_at) == (9.0, 20, 5.0), (
        "steps of the phase, time of its worker"
    )
    [evaluation] = curves["evaluation.return"].in_order
    assert (evaluation.first_key, evaluation.count, evaluation.mean, evaluation.last_step) == (1, 2, 10.5, 20)
    assert (curves["loss"].count, curves["loss"].unusable) == (8, 1)
    assert (curves["never"].count, curves["never"].unusable) == (0, 1)


def test_so_many_metrics_have_a_curve():
    statistics = PhaseStatistics(COMMAND)
    metrics = {f"m{number:03}": 1.0 for number in range(500)}
    record = EpisodeRecord(
        index=0, worker=0, seed=0, outcome="terminated", value=1.0, steps=1, seconds=0.1, metrics=metrics
    )
    statistics.add(record)
    assert len(statistics.figures.curves) == CURVES
    assert {"return", "steps"} <= {*statistics.figures.curves}


def spread(*values):
    made = Spread()
    for value in values:
        made.add(value)
    return made


def test_a_mean_is_as_exact_as_its_values():
    assert spread(1e16, 1.0, -1e16).mean == 1 / 3
    assert spread(*[0.1] * 10).mean == 0.1


def test_what_is_too_large_for_a_float_is_inf_or_nan():
    assert spread(1e308, 1e308, 1e308).mean == math.inf
    assert spread(math.inf, 1.0).mean == math.inf
    assert math.isnan(spread(math.inf, -math.inf).mean)
    assert math.isnan(spread(math.nan).mean)
    assert spread(1e308, 1e308).deviation >= 0.0
    assert spread(1e308, -1e308).deviation == math.inf


def episode_with(index, metrics, outcome="terminated"):
    return EpisodeRecord(
        index=index, worker=0, seed=0, outcome=outcome, value=0.0, steps=1, seconds=0.1, metrics=metrics
    )


def test_metrics_of_the_user_are_over_the_episodes_that_have_them():
    metrics = [{"loss": 1.0}, {"loss": 3.0, "loss.nonfinite": 2.0}, {"loss.nonfinite": 1.0}]
    records = [episode_with(index, each) for index, each in enumerate(metrics)]
    statistics, _ = figures_of([*records, episode_with(3, {"loss": 100.0}, "failed")])
    found = summarize(statistics.figures)
    assert {name: found[name] for name in found if name.startswith("loss")} == {
        "loss_mean": 2.0, "loss_min": 1.0, "loss_max": 3.0, "loss_nonfinite": 3.0,
    }  # fmt: skip


def test_a_name_of_the_user_takes_no_figure_of_ours():
    statistics, _ = figures_of([episode_with(0, {"return": 9.0, "steps": 7.0})])
    found = summarize(statistics.figures)
    assert {name for name in found if name.startswith("steps")} == {"steps_mean", "steps_total"}
    assert (found["return_mean"], found["return_max"], found["steps_mean"]) == (0.0, 0.0, 1.0)


def test_a_phase_has_a_bounded_number_of_names():
    statistics, _ = figures_of([episode_with(index, {f"k{index}": 1.0}) for index in range(2 * MOST_METRICS)])
    assert len(statistics.figures.metrics) == MOST_METRICS
