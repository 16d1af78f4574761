"""Several environments of one worker: each episode is what it is without the others."""

import asyncio

import numpy as np
import pytest
from in_process_commands import episodes, inside, outcomes, vector

from governor.episodes.rules.seeds import episode_seed
from governor.messages import EpisodeEnded, PartEnded, StopPart, Until


def told(records):
    return sorted((r.index, r.seed, r.outcome, r.value, r.steps, r.reason) for r in records)


@pytest.mark.parametrize("entry", ["gymnasium:CartPole-v1", "gymnasium:FrozenLake-v1"])
@pytest.mark.parametrize("agent", ["walk_world:Reflex", "walk_world:Many"])
async def test_an_episode_is_the_same_as_without_a_vector(house, entry, agent):
    alone, _ = await house.play(
        episodes=30, max_steps=40, name="alone", **inside(entry=entry, agent="walk_world:Reflex")
    )
    (house.folder / "run/agents/walker.state").unlink()
    beside, end = await house.play(episodes=30, max_steps=40, **vector(7, entry=entry, agent=agent))
    assert told(beside) == told(alone)
    assert {record.worker for record in beside} == set(range(7))
    assert end.end == "max_episodes"
    assert house.state()["learned"] == sum(record.steps for record in alone)


async def test_workers_may_have_a_vector_each(house):
    records, _ = await house.play(episodes=40, workers=2, **vector(3))
    assert [(r.index, r.value) for r in sorted(records, key=lambda r: r.index)] == [
        (i, 5.0) for i in range(40)
    ]
    assert {record.worker for record in records} <= set(range(6))
    assert house.state()["learned"] == 200


@pytest.mark.parametrize("fault", ["step", "exit", "nan", "four"])
async def test_a_fault_is_one_episodes_alone(house, fault):
    records, end = await house.play(episodes=8, **vector(4, fault=fault, flag=str(house.folder / "flag")))
    assert sorted(outcomes(records)) == ["failed"] + ["terminated"] * 7
    assert [record.steps for record in records if record.outcome == "failed"] == [2]
    assert end.failures == 1


async def test_a_reset_that_fails_is_one_episodes_alone(house):
    records, _ = await house.play(episodes=8, **vector(4, fault="reset"))
    assert outcomes(records) == ["failed"] * 8


async def test_an_agent_that_cannot_act_for_all_fails_them_all(house):
    records, end = await house.play(episodes=2, **vector(2, agent="walk_world:Few"))
    assert outcomes(records) == ["failed"] * 2
    assert {record.reason for record in records} == {"agent.act: ValueError: 1 actions for 2 observations"}
    assert end.failures == 2


@pytest.mark.parametrize("agent", ["walk_world:Agent", "walk_world:Many"])
async def test_a_hang_is_found_where_it_is_and_not_where_others_wait(house, agent):
    start = int(np.random.default_rng(episode_seed(7, 0, 2)).integers(100))
    controller = await house.start("simulation")
    hangs = vector(4, entry="walk_world:Unlucky", fault="sleep", start=start, agent=agent)
    await controller.perform(house.command(episodes=9, episode_timeout=1.0, **hangs))
    reason = await asyncio.wait_for(controller.failed, 20)
    (record,) = [r for r in episodes(house.links["simulation"]) if r.outcome == "timed_out"]
    assert reason == "environment 'lake' hangs in episode 2"
    assert (record.index, record.steps) == (2, 2)
    assert record.reason == "longer than 1 s, and environment 'lake' hangs"


async def test_an_agent_that_hangs_for_all_gives_up(house):
    controller = await house.start("simulation")
    await controller.perform(
        house.command(episodes=9, episode_timeout=0.3, **vector(4, agent="walk_world:Stuck"))
    )
    assert (await asyncio.wait_for(controller.failed, 20)).startswith("agent 'walker' hangs in episode ")
    assert set(outcomes(episodes(house.links["simulation"]))) == {"timed_out"}


async def test_until_and_stop_end_all(house):
    records, end = await house.play(
        episodes=5000, until=(Until(metric="return", at_least=5.0, average_over=8),), **vector(4)
    )
    assert end.end == "until"
    assert outcomes(records)[:8] == ["terminated"] * 8
    assert len(records) <= 16
    controller = await house.start("simulation", incarnation=2)
    await controller.perform(house.command(name="b", **vector(4, entry="walk_world:Endless")))
    await controller.perform(StopPart(phase=0, reason="abort"))
    records, end = await house.end()
    assert (set(outcomes(records)) | {"cancelled"}, end.end) == ({"cancelled"}, "stopped")


async def test_a_pause_lets_the_others_come_to_their_end(house):
    """Their time would be up when it is over, had they been held, too."""
    controller = await house.start("simulation", flow="PAUSE")
    more = vector(4, entry="gymnasium:CartPole-v1", agent="walk_world:Reflex")
    command = house.command(episodes=3000, episode_timeout=1.0, **more)
    await controller.perform(command)
    link = house.links["simulation"]
    await link.next(EpisodeEnded)
    with pytest.raises(TimeoutError):
        await house.end(seconds=1.5)
    link.flow = "CONTINUE"
    await controller.perform(command)
    async with asyncio.timeout(30):
        await link.next(PartEnded)
    assert outcomes(episodes(link)) == ["terminated"] * 3000
