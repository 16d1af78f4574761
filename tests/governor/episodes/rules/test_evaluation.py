"""Which episodes come when, and what an evaluation says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.episodes.rules.evaluation import (
    EpisodeSchedule,
    EvaluationResults,
    Stage,
    entropy,
    number_of,
    planned_episodes,
    stages,
)
from governor.index_ranges import IndexRanges
from governor.messages import Checkpoint, EpisodeRecord, Evaluate, Plateau, StartSimulation

EVALUATE = Evaluate(every=2, episodes=3)


def command(evaluate=EVALUATE, episodes=5):
    return StartSimulation(
        phase=1, name="p", mode="train", environment="e", agents=("a",), episodes=episodes, workers=1,
        max_steps=None, episode_timeout=None, seed=7, evaluate=evaluate,
    )  # fmt: skip


def played(evaluation, *values, outcome="terminated", first=100):
    return [
        EpisodeRecord(
            index=first + number, worker=0, seed=0, outcome=outcome, value=value, steps=3, seconds=0.1,
            evaluation=evaluation,
        )
        for number, value in enumerate(values)
    ]  # fmt: skip


def verdicts(results, *means):
    """What each evaluation of three episodes with this mean is answered with."""
    found = []
    for number, mean in enumerate(means, start=1):
        flows = [results.episode_flow_control(record) for record in played(number, mean - 1, mean, mean + 1)]
        assert flows[:2] == ["CONTINUE", "CONTINUE"]
        found.append(flows[2] == "STOP_SIMULATION")
    return found


def test_without_rules_a_phase_is_one_stage():
    assert list(stages(5, None, None)) == [Stage(range(5), 5)]


def test_evaluations_come_between_training_and_are_numbered_on_behind_it():
    assert list(stages(5, EVALUATE, None)) == [
        Stage(range(2), 2),
        Stage(range(5, 8), 2, evaluation=1),
        Stage(range(2, 4), 4),
        Stage(range(8, 11), 4, evaluation=2),
        Stage(range(4, 5), 5),
    ]


def test_checkpoints_end_a_stage_too():
    found = [(stage.trained, stage.keep) for stage in stages(6, None, Checkpoint(every=4))]
    assert found == [(4, True), (6, False)]
    both = [
        (stage.trained, stage.keep, stage.evaluation) for stage in stages(6, EVALUATE, Checkpoint(every=3))
    ]
    assert both == [
        (2, False, 0),
        (2, False, 1),
        (3, True, 0),
        (4, False, 0),
        (4, False, 2),
        (6, True, 0),
        (6, False, 3),
    ]


def test_the_seeds_of_evaluations_are_a_stream_of_their_own_and_the_same_in_each():
    asked = command()
    of = {index: entropy(index, asked) for index in range(11)}
    assert [of[5], of[6], of[7]] == [of[8], of[9], of[10]]
    assert len({*of.values()}) == 5 + 3
    assert [number_of(index, asked) for index in range(11)] == [0] * 5 + [1] * 3 + [2] * 3
    assert entropy(7, command(evaluate=None)) == (1, 7)


@given(
    episodes=st.integers(1, 30),
    every=st.integers(1, 12),
    kept=st.none() | st.integers(1, 12),
    known=st.sets(st.integers(0, 80)),
    workers=st.integers(1, 4),
    draw=st.data(),
)
def test_each_stage_begins_when_the_one_before_is_over_and_nothing_is_played_twice(
    *, episodes, every, kept, known, workers, draw
):
    evaluate = Evaluate(every=every, episodes=2)
    planned = list(stages(episodes, evaluate, Checkpoint(every=kept) if kept else None))
    expected = [index for stage in planned for index in stage.indexes if index not in known]
    stage_of = {index: at for at, stage in enumerate(planned) for index in stage.indexes}
    schedule = EpisodeSchedule(planned, known=IndexRanges.of(known))
    running, begun = [], []
    while True:
        while len(running) < workers and (index := schedule.next()) is not None:
            assert all(stage_of[other] == stage_of[index] for other in running)
            running.append(index)
            begun.append(index)
        if not running:
            break
        index = running.pop(draw.draw(st.integers(0, len(running) - 1)))
        if schedule.ended(index):
            assert not running
            schedule.advance()
    assert begun == expected
    assert schedule.is_last


@given(
    episodes=st.integers(1, 30),
    every=st.none() | st.integers(1, 12),
    kept=st.none() | st.integers(1, 12),
    begun=st.integers(0, 60),
    missing=st.sets(st.integers(0, 60), max_size=3),
)
def test_what_is_known_is_left_out_up_to_the_last_stage_that_was_over(
    *, episodes, every, kept, begun, missing
):
    rules = (Evaluate(every=every, episodes=2) if every else None, Checkpoint(every=kept) if kept else None)
    planned = list(stages(episodes, *rules))
    assert sum(len(stage.indexes) for stage in planned) == planned_episodes(episodes, rules[0])
    in_order = [index for stage in planned for index in stage.indexes]
    known = IndexRanges.of(set(in_order[:begun]) - missing)
    found = list(stages(episodes, *rules, known=known))
    assert found == planned[len(planned) - len(found) :]
    whole, less = EpisodeSchedule(planned, known=known), EpisodeSchedule(found, known=known)
    assert (less.stage, less.behind) == (whole.stage, whole.behind)
    at = planned.index(whole.stage) if whole.stage is not None else len(planned)
    assert len(planned) - len(found) >= at - 2


def test_of_ten_million_episodes_the_first_nine_are_passed_over():
    ended = IndexRanges([0, 9_000_000, 10_000_000, 10_450_000])
    found = stages(10_000_000, Evaluate(every=100, episodes=5), Checkpoint(every=50), known=ended)
    assert [next(found).indexes.start for _ in range(3)] == [8_999_950, 10_449_995, 9_000_000]


def test_a_later_life_knows_the_stage_that_was_over():
    planned = list(stages(5, EVALUATE, None))
    assert EpisodeSchedule(planned, known=IndexRanges.of(())).behind is None
    assert EpisodeSchedule(planned, known=IndexRanges.of({0})).behind is None
    assert EpisodeSchedule(planned, known=IndexRanges.of({0, 1})).behind == planned[0]
    assert EpisodeSchedule(planned, known=IndexRanges.of({0, 1, 5, 6})).behind == planned[0]
    assert EpisodeSchedule(planned, known=IndexRanges.of(range(11))).behind == planned[-1]


def test_success_needs_so_many_in_a_row():
    results = EvaluationResults(Evaluate(every=1, episodes=3, at_least=5.0, consecutive=2))
    assert verdicts(results, 5.0, 4.9, 5.0, 5.1) == [False, False, False, True]
    assert results.metrics == {
        "evaluations": 4, "evaluation_return_mean": 5.1, "evaluation_return_best": 5.1
    }  # fmt: skip


def test_less_may_be_better():
    results = EvaluationResults(Evaluate(every=1, episodes=3, at_most=2.0))
    assert verdicts(results, 3.0, 2.5, 2.0) == [False, False, True]
    assert results.metrics["evaluation_return_best"] == 2.0


def test_other_metrics():
    results = EvaluationResults(Evaluate(every=1, episodes=2, metric="steps", at_least=3.0))
    assert [results.episode_flow_control(record) for record in played(1, 0.0, 0.0)][-1] == "STOP_SIMULATION"
    assert results.metrics["evaluation_steps_mean"] == 3.0


@pytest.mark.parametrize(
    ("plateau", "means", "expected"),
    [
        (Plateau(patience=2), [1, 2, 2, 2], [False, False, False, True]),
        (Plateau(patience=2), [1, 2, 2, 3, 3, 3], [False] * 5 + [True]),
        (Plateau(patience=1, min_delta=0.5), [1, 1.4], [False, True]),
        (Plateau(patience=1, min_delta=0.5), [1, 1.6, 2.2], [False] * 3),
        (Plateau(patience=1, direction="min"), [3, 2, 2.5], [False, False, True]),
        (Plateau(patience=1, window=2), [0, 4, 0, 4], [False, False, True, True]),
        (Plateau(patience=1, window=2), [0, 2, 1, 4], [False] * 4),
    ],
)
def test_a_plateau(plateau, means, expected):
    assert verdicts(EvaluationResults(Evaluate(every=1, episodes=3, plateau=plateau)), *means) == expected


def test_an_evaluation_that_says_nothing_ends_a_row_of_successes():
    results = EvaluationResults(Evaluate(every=1, episodes=2, at_least=5.0, consecutive=2))
    for records in (played(1, 5.0, 5.0), played(2, 9.0, 9.0, outcome="failed"), played(3, 5.0, 5.0)):
        assert [results.episode_flow_control(record) for record in records] == ["CONTINUE"] * 2
    assert [*results.means] == [1, 3]
    assert results.episode_flow_control(played(4, 5.0)[0]) == "CONTINUE"
    assert results.episode_flow_control(played(4, 5.0)[0]) == "STOP_SIMULATION"


def test_what_was_cancelled_is_no_evaluation():
    results = EvaluationResults(Evaluate(every=1, episodes=2, at_least=0.0))
    assert [results.episode_flow_control(record) for record in played(1, 5.0, 5.0, outcome="cancelled")] == [
        "CONTINUE"
    ] * 2
    assert results.metrics == {}
