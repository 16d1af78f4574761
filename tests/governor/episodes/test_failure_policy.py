"""What a phase bears of failed episodes, and how often it plays them again, however they are played."""

import pytest

from governor.episodes import trajectories
from governor.episodes.rules.seeds import episode_seed
from governor.messages import EpisodeAttemptEnded, EpisodeRecord, Evaluate, Failures
from tests.support.in_process_commands import outcomes

EACH = pytest.mark.parametrize("transport", ["conductors", "in_process", "vector", "rounds"])
WORKERS = pytest.mark.parametrize(
    ("transport", "workers"), [("conductors", 1), ("conductors", 3), ("in_process", 3), ("rounds", 2)]
)


def seeds(*indices):
    return [episode_seed(7, 0, index) for index in indices]


async def stage(harness, transport, *, pool=1, **params):
    made = {"entry": "failing_world:Failing", "agent": "walk_world:Agent", "log": str(harness.folder / "log")}
    return await harness.stage(transport, pool=pool, **made, **params)


def attempts(harness):
    """Episode, number and outcome of each attempt that was not the last one."""
    events = harness.links["simulation"].events
    return [(e.index, e.attempt, e.outcome) for e in events if isinstance(e, EpisodeAttemptEnded)]


@EACH
async def test_a_phase_ends_at_the_first_failure_that_it_does_not_bear(harness, transport):
    command = await stage(harness, transport)
    records, end = await harness.play(episodes=3000, failures=Failures(at_most=5), **command)
    failed = outcomes(records).count("failed")
    assert 6 <= failed <= 6 + 3, "those that a vector plays at the same time fail in the same step"
    assert set(outcomes(records)) <= {"failed", "cancelled"}
    assert (end.end, end.exceeded, end.tolerated) == ("failures", "failures.at_most of 5", False)
    assert end.ended_by == end.exceeded
    assert (end.failures, end.fault) == (failed, "")


@EACH
async def test_what_it_bears_ends_nothing(harness, transport):
    command = await stage(harness, transport, seeds=seeds(3, 40))
    records, end = await harness.play(episodes=200, failures=Failures(at_most="1%"), **command)
    assert (outcomes(records).count("failed"), len(records)) == (2, 200)
    assert (end.end, end.failures, end.tolerated, end.exceeded) == ("max_episodes", 2, True, "")


async def test_one_more_is_one_too_many_and_its_bound_names_the_plan(harness):
    command = await stage(harness, "in_process", seeds=seeds(3, 40, 41, 60))
    records, end = await harness.play(episodes=200, failures=Failures(at_most="1%"), **command)
    assert (len(records), end.exceeded) == (42, "failures.at_most of 2 (1% of 200 episodes)")


@EACH
async def test_failures_in_a_row_end_a_phase_and_others_do_not(harness, transport):
    bad = [index for index in range(60) if index % 2] + [*range(100, 140)]
    command = await stage(harness, transport, seeds=seeds(*bad))
    bound = Failures(consecutive=10)
    records, end = await harness.play(episodes=1000, failures=bound, **command)
    assert (end.end, end.exceeded) == ("failures", "failures.consecutive of 10")
    assert {record.index for record in records if record.outcome == "failed"} > {
        index for index in bad if index < 60
    }
    assert len(records) <= 113


@WORKERS
async def test_a_failed_episode_is_played_again_and_only_its_last_attempt_counts(harness, transport, workers):
    command = await stage(harness, transport, pool=workers, seeds=seeds(1, 5, 11), times=2)
    records, end = await harness.play(
        episodes=12, workers=workers, failures=Failures(at_most=0, retry=2), **command
    )
    assert sorted(record.index for record in records) == [*range(12)]
    assert (set(outcomes(records)), end.failures) == ({"terminated"}, 0)
    assert sorted(attempts(harness)) == [(n, k, "failed") for n in (1, 5, 11) for k in (1, 2)]
    assert {record.index: record.seed for record in records} == dict(enumerate(seeds(*range(12))))
    steps = trajectories.read(harness.folder / "run", "train")
    assert steps["episode"].to_pylist() == [index for index in range(12) for _ in range(3)]
    assert steps["terminated"].to_pylist() == [False, False, True] * 12, (
        "the steps of the last attempts alone"
    )


async def test_an_episode_that_fails_too_often_has_failed(harness):
    command = await stage(harness, "in_process", seeds=seeds(1))
    records, end = await harness.play(episodes=3, failures=Failures(at_most=1, retry=2), **command)
    assert outcomes(records) == ["terminated", "failed", "terminated"]
    assert attempts(harness) == [(1, 1, "failed"), (1, 2, "failed")]
    assert (end.failures, end.tolerated) == (1, True)


async def test_kinds_have_retries_of_their_own(harness):
    command = await stage(harness, "in_process", seeds=seeds(1))
    failures = Failures(at_most=1, retry={"infrastructure": 3, "time": 1})
    records, _ = await harness.play(episodes=3, failures=failures, **command)
    assert (outcomes(records)[1], attempts(harness)) == ("failed", [])


async def test_a_later_process_continues_the_counts(harness):
    done = tuple(
        EpisodeRecord(
            index=n, worker=0, seed=0, outcome=outcome, value=0.0, steps=1, seconds=0.1, reason="x: y"
        )
        for n, outcome in enumerate(["failed", "terminated", "crashed", "timed_out"])
    )
    lines = harness.folder / "run/episodes/train.jsonl"
    lines.parent.mkdir()
    lines.write_text("".join(f'{{"index": {record.index}}}\n' for record in done))
    command = await stage(harness, "in_process", seeds=seeds(6, 7))
    records, end = await harness.play(episodes=50, done=done, failures=Failures(at_most=3), **command)
    assert ([record.index for record in records], end.failures) == ([4, 5, 6], 4)
    command = await stage(harness, "in_process", seeds=seeds(4))
    records, end = await harness.play(
        phase=0,
        name="other",
        incarnation=2,
        episodes=50,
        done=done,
        failures=Failures(consecutive=3),
        **command,
    )
    assert ([record.index for record in records], end.exceeded) == ([4], "failures.consecutive of 3")


async def test_a_phase_whose_bound_was_passed_before_plays_nothing(harness):
    done = (EpisodeRecord(index=0, worker=0, seed=0, outcome="failed", value=0.0, steps=1, seconds=0.1),)
    lines = harness.folder / "run/episodes/train.jsonl"
    lines.parent.mkdir()
    lines.write_text('{"index": 0}\n')
    command = await stage(harness, "in_process", seeds=[])
    records, end = await harness.play(episodes=50, done=done, failures=Failures(at_most=0), **command)
    assert (records, end.end, end.exceeded) == ([], "failures", "failures.at_most of 0")


async def test_attempts_of_an_earlier_process_count(harness):
    command = await stage(harness, "in_process", seeds=seeds(1))
    failures, before = Failures(at_most=5, retry=2), {1: ("user", "time")}
    records, _ = await harness.play(episodes=3, failures=failures, attempts=before, **command)
    assert (outcomes(records)[1], attempts(harness)) == ("failed", [(1, 3, "failed")])


async def test_episodes_of_evaluations_count_and_are_planned(harness):
    """20 training episodes and two evaluations of 5: a tenth are 3."""
    log = {"log": str(harness.folder / "log"), "seeds": [episode_seed(7, 0, 1, 1), episode_seed(7, 0, 2, 1)]}
    command = await harness.stage("in_process", entry="failing_world:Failing", **log)
    evaluate = Evaluate(every=10, episodes=5)
    records, end = await harness.play(
        episodes=20, evaluate=evaluate, failures=Failures(at_most="10%"), **command
    )
    assert end.exceeded == "failures.at_most of 3 (10% of 30 episodes)"
    assert [record.evaluation for record in records if record.outcome == "failed"] == [1, 1, 2, 2]
