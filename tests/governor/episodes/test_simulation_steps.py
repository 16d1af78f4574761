"""What is on record of the steps of episodes, however they are played, and what a disk costs that is full of them."""

import asyncio

import pytest

from governor.episodes import trajectories
from governor.episodes.records.recording import Columns, StepRecorder
from governor.episodes.spaces import Discrete
from governor.messages import EpisodeEnded, EpisodeRecord
from tests.support.full_disk import full_beyond
from tests.support.in_process_commands import outcomes

FULL = "cannot record its steps: OSError: [Errno 27] File too large"
WALK = Columns.of(Discrete(n=1000, start=0), Discrete(n=2, start=0))
EACH = pytest.mark.parametrize("transport", ["conductors", "in_process", "vector", "rounds"])


def steps_of(harness, phase="train"):
    table = trajectories.read(harness.folder / "run", phase)
    return table.to_pandas()


@EACH
async def test_every_step_of_every_episode_is_on_record(harness, transport):
    command = await harness.stage(transport, pool=2)
    records, end = await harness.play(episodes=6, workers=2, max_steps=4, **command)
    assert end.first_failure == ""
    steps = steps_of(harness)
    assert steps.episode.tolist() == [episode for episode in range(6) for _ in range(4)]
    assert steps.step.tolist() == [0, 1, 2, 3] * 6
    assert (steps.observation.diff()[steps.step > 0] == 1).all(), (
        "what the action was taken at, not what it led to"
    )
    assert steps.groupby("episode").reward.sum().tolist() == [4.0] * 6
    assert steps.truncated.tolist() == [False, False, False, True] * 6
    assert not steps.terminated.any()
    by_index = {record.index: record for record in records}
    assert all(by_index[row.episode].worker == row.worker for row in steps.itertuples())
    assert all(by_index[row.episode].seed == row.seed for row in steps.itertuples())
    assert [path.name for path in (harness.folder / "run/episodes").glob("train.*")] != []
    assert not list((harness.folder / "run/episodes").glob("*.arrow"))


@EACH
async def test_the_steps_of_an_episode_are_on_disk_when_it_is_reported(harness, transport):
    command = await harness.stage(transport)
    await harness.start("simulation")
    link, seen = harness.links["simulation"], []
    report = link.report

    async def read_and_report(event):
        if isinstance(event, EpisodeEnded):
            steps = steps_of(harness)
            seen.append((steps.episode == event.episode.index).sum() == event.episode.steps)
        return await report(event)

    link.report = read_and_report
    await harness.conductors["simulation"].perform(harness.command(**command))
    await harness.end()
    assert seen == [True] * 3


@EACH
async def test_failed_episodes_keep_their_steps(harness, transport):
    command = await harness.stage(transport, fault="step", flag=str(harness.folder / "flag"))
    await harness.play(episodes=2, **command)
    steps = steps_of(harness)
    assert steps.groupby("episode").size().tolist() == [2, 5]
    assert steps.groupby("episode").outcome.first().tolist() == ["failed", "terminated"]


async def test_steps_of_an_earlier_life_count_where_their_episode_did(harness):
    await harness.pair()
    run = harness.folder / "run"
    before = StepRecorder(run, phase="train", worker=0, columns=WALK)
    for index in range(3):
        before.begin(episode=index, seed=0)
        for _ in range(2):
            before.step(900, 0, 0.0, False, False)
        before.end(outcome="terminated")
    before.close()
    done = EpisodeRecord(index=0, worker=0, seed=0, outcome="terminated", value=0.0, steps=2, seconds=0.1)
    await harness.play(episodes=2, done=(done,))
    assert steps_of(harness).groupby("episode").size().to_dict() == {0: 2, 1: 5}


async def test_a_disk_that_is_full_of_steps_fails_that_episode_alone(harness):
    await harness.pair(length=300)
    controller = await harness.start("simulation")
    link = harness.links["simulation"]
    with full_beyond(15_000):  # holds one episode
        await controller.perform(harness.command(episodes=3))
        second = await asyncio.wait_for(link.next(EpisodeEnded, after=1), 20)
    records, end = await harness.end()
    assert records[0].outcome == "terminated"
    assert (second.episode.outcome, second.episode.reason) == ("failed", FULL)
    assert len(records) == len(harness.lines()) == 3
    assert end.first_failure == f"episode 1: {FULL}"
    assert (steps_of(harness).episode == 0).sum() == 300


@EACH
async def test_a_disk_that_fills_up_in_a_long_episode_ends_it(harness, transport):
    command = await harness.stage(transport, entry="walk_world:Vector")
    with full_beyond(15_000):
        records, end = await harness.play(episodes=1, max_steps=5000, **command)
    assert (records[0].outcome, records[0].reason, records[0].steps) == ("failed", FULL, 4096)
    assert (end.end, end.failures) == ("max_episodes", 1)


async def test_steps_that_cannot_be_finalized_are_the_parts_failure(harness):
    await harness.pair()
    (harness.folder / "run/episodes/.train.parquet.part").mkdir(parents=True)
    records, end = await harness.play()
    assert outcomes(records) == ["terminated"] * 3
    assert end.failures == 1
    assert end.first_failure.startswith("cannot finalize the steps of 'train': ")
    assert len(steps_of(harness)) == 15
