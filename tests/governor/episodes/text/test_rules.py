"""The rules of a phase where a language model plays: evaluation, checkpoints, sums over several lives."""

import asyncio

import pandas as pd
import pytest

from governor.episodes.text.environments.process import TextProcess
from governor.messages import Checkpoint, EpisodeEnded, Evaluate, Made, Refused
from tests.support.language_models.text_world import TextWorld

SECONDS = 60
NAMES = ("tokens_prompt", "tokens_completion", "llm_requests", "llm_retries")


@pytest.fixture
async def world():
    async with TextWorld() as made:
        yield made


def talking(world, name="walk", *, entry=None, **params):
    environment = {} if entry else {"name": name}
    return {
        "transport": "in_process",
        "made_environment": Made(entry=entry or world.url, params=environment),
        "made_agents": (Made(entry="openai:m", params={"base_url": world.llm, "retries": 0, **params}),),
    }


@pytest.mark.parametrize("entry", [None, "tests.support.user_code.text_walks:Walk"], ids=["http", "python"])
async def test_evaluations_are_played(harness, world, entry):
    evaluate = Evaluate(every=2, episodes=3)
    records, end = await harness.play(
        seconds=SECONDS, episodes=4, workers=2, evaluate=evaluate, **talking(world, entry=entry)
    )
    assert (end.end, end.failures) == ("max_episodes", 0)
    # Side by side episodes may end in any order within a stage, and no stage begins before the last one is over.
    assert [
        sorted(record.index for record in records[a:b]) for a, b in ((0, 2), (2, 5), (5, 7), (7, 10))
    ] == [
        [0, 1],
        [4, 5, 6],
        [2, 3],
        [7, 8, 9],
    ]
    assert {record.index: record.evaluation for record in records if record.evaluation} == {
        4: 1, 5: 1, 6: 1, 7: 2, 8: 2, 9: 2,
    }  # fmt: skip
    assert (end.metrics["evaluations"], end.metrics["evaluation_return_mean"]) == (2, 3.0)
    assert end.metrics["episodes_ended"] == 4
    steps = pd.read_parquet(harness.folder / "run/episodes/train.parquet")
    assert set(steps.episode) == set(range(10))


async def test_what_an_environment_prints_belongs_to_its_evaluation(harness, world, monkeypatch):
    told, begin = [], TextProcess.begin

    async def begin_and_tell(process, **fields):
        told.append(fields)
        await begin(process, **fields)

    monkeypatch.setattr(TextProcess, "begin", begin_and_tell)
    evaluate = Evaluate(every=2, episodes=1)
    entry = "tests.support.user_code.text_walks:Walk"
    await harness.play(seconds=SECONDS, episodes=4, evaluate=evaluate, **talking(world, entry=entry))
    assert [(fields["episode"], fields.get("evaluation")) for fields in told] == [
        (0, None), (1, None), (4, 1), (2, None), (3, None), (5, 2)
    ]  # fmt: skip


async def test_an_evaluation_ends_the_phase(harness, world):
    evaluate = Evaluate(every=2, episodes=1, at_least=3.0)
    records, end = await harness.play(
        seconds=SECONDS, episodes=40, evaluate=evaluate, **talking(world, temperature=0.0)
    )
    assert (len(records), end.end) == (3, "until")


async def test_a_checkpoint_is_refused_at_once(harness, world):
    controller = await harness.start("simulation")
    told = await controller.perform(harness.command(checkpoint=Checkpoint(last=True), **talking(world)))
    assert isinstance(told, Refused)
    assert "no checkpoint can be taken of a language model" in told.message


async def test_tokens_are_summed_over_the_lives_of_a_phase(harness, world):
    records, end = await harness.play(seconds=SECONDS, episodes=2, **talking(world))
    assert [end.metrics[name] for name in NAMES] == [30, 12, 6, 0]
    _, end = await harness.play(
        seconds=SECONDS, episodes=3, done=tuple(records), incarnation=2, **talking(world)
    )
    assert [end.metrics[name] for name in NAMES] == [45, 18, 9, 0]


async def test_what_a_killed_life_had_asked_when_its_episode_was_reported_counts(harness, world):
    controller = await harness.start("simulation")
    world.gate = lambda body: world.hold.wait() if len(world.asked) > 4 else no_wait()
    await controller.perform(harness.command(episodes=2, **talking(world)))
    link = harness.links["simulation"]
    await asyncio.wait_for(link.next(EpisodeEnded), SECONDS)
    kept = (harness.folder / "run/episodes/train.usage").read_bytes()
    assert kept == b'{"prompt_tokens":15,"completion_tokens":6,"requests":3,"retries":0}'
    await controller.close()


async def test_a_file_of_sums_that_is_broken_is_begun_anew(harness, world):
    folder = harness.folder / "run/episodes"
    folder.mkdir(parents=True)
    (folder / "train.usage").write_bytes(b'{"prompt_tokens": "many"')
    _, end = await harness.play(seconds=SECONDS, episodes=1, **talking(world))
    assert [end.metrics[name] for name in NAMES] == [15, 6, 3, 0]


async def no_wait():
    pass
