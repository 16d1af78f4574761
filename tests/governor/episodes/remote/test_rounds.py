"""Vectors through conductors: hangs, exits, and the ends of their episodes. The rest is in transports/test_vectors.py."""

import asyncio

import numpy as np
import pytest

from governor.episodes import trajectories
from governor.episodes.rules.seeds import episode_seed
from governor.messages import EpisodeEnded, StopPartCommand, Until
from tests.support.in_process_commands import episodes, outcomes, told, vector
from tests.support.reasons import without_place


async def test_the_agents_calls_come_in_the_order_of_a_vector_in_process(harness):
    """It draws its actions from one generator: another order would be other episodes."""
    lake = {"entry": "gymnasium:FrozenLake-v1", "agent": "walk_world:Random"}
    inner, _ = await harness.play(episodes=40, max_steps=9, name="inner", **vector(5, **lake))
    (harness.folder / "run/agents/walker.state").unlink()
    await harness.pair(vector=5, **lake)
    outer, _ = await harness.play(episodes=40, max_steps=9, vector=5, incarnation=2)
    assert told(outer) == told(inner)


async def test_vectors_of_numbers_cross_and_may_be_written_to(harness):
    await harness.pair(entry="walk_world:Overwrites", vector=3)
    records, _ = await harness.play(episodes=5, max_steps=4, vector=3)
    assert outcomes(records) == ["truncated"] * 5
    steps = trajectories.read(harness.folder / "run", "train").to_pandas()
    assert [row.tolist() for row in steps.observation[:4]] == [[float(at)] * 2 for at in range(4)]
    assert (np.abs(np.stack(steps.action)) <= 1).all()


async def test_an_environment_that_hangs_is_found_and_its_neighbours_play_again(harness):
    start = int(np.random.default_rng(episode_seed(7, 0, 2)).integers(100))
    await harness.pair(vector=4, entry="walk_world:Unlucky", fault="sleep", start=start)
    records, end = await harness.play(episodes=9, vector=4, episode_timeout=0.5)
    (hung,) = [record for record in records if record.outcome == "timed_out"]
    assert (hung.index, without_place(hung.reason)) == (2, "longer than 0.5 s, and environment 'lake' hangs")
    assert sorted(outcomes(records)) == ["terminated"] * 8 + ["timed_out"]
    assert all(record.steps == 5 for record in records if record.index != 2)
    assert end.metrics["episodes_played_again"] == 3
    steps = trajectories.read(harness.folder / "run", "train").to_pandas()
    assert steps.groupby("episode").size().tolist() == [5, 5, 2, 5, 5, 5, 5, 5, 5]


async def test_a_slow_one_is_not_taken_for_one_that_hangs(harness):
    start = int(np.random.default_rng(episode_seed(7, 0, 2)).integers(100))
    await harness.pair(vector=4, entry="walk_world:Unlucky", fault="slow", start=start)
    records, end = await harness.play(episodes=9, vector=4, episode_timeout=0.1)
    assert {r.reason for r in records if r.index == 2} == {"longer than 0.1 s"}
    assert "episodes_played_again" not in end.metrics


async def test_an_agent_that_hangs_for_all_makes_its_conductor_give_up(harness):
    await harness.pair(vector=4, agent="walk_world:Stuck")
    controller = await harness.start("simulation")
    await controller.perform(harness.command(episodes=4, vector=4, episode_timeout=0.3))
    assert "hangs" in await asyncio.wait_for(harness.failures["agent.walker"], 20)
    link = harness.links["simulation"]
    for after in range(4):
        await asyncio.wait_for(link.next(EpisodeEnded, after=after), 20)
    assert {(r.outcome, without_place(r.reason)) for r in episodes(link)} == {
        ("timed_out", "longer than 0.3 s, and agent 'walker' hangs")
    }


@pytest.mark.parametrize("dies", ["environment", "agent"])
async def test_a_conductor_that_dies_costs_no_episode(harness, dies):
    flag = str(harness.folder / "flag")
    worlds = {"entry": "walk_world:Walk", "params": {}, "pool": 1, "vector": 4}
    agents = {"entry": "walk_world:Agent", "params": {}}
    if dies == "environment":
        worlds["params"] = {"fault": "orphan", "flag": flag}
    else:
        agents = {"entry": "walk_world:Dies", "params": {"at": 11, "flag": flag}}
    name, settings, socket, code = {
        "environment": ("environment.lake", worlds, "environment.lake.{}.0", -9),
        "agent": ("agent.walker", agents, "agent.walker.{}", 9),
    }[dies]
    child = harness.spawn(name, **settings)
    if dies == "environment":
        await harness.start("agent.walker", **agents)
    else:
        await harness.start("environment.lake", **worlds)
    controller = await harness.start("simulation")
    await controller.perform(harness.command(episodes=12, vector=4))
    assert await asyncio.to_thread(child.wait, 20) == code
    (harness.folder / socket.format(1)).unlink()
    harness.spawn(name, incarnation=2, **settings)
    records, end = await harness.end()
    assert sorted((r.index, r.outcome, r.steps) for r in records) == [(i, "terminated", 5) for i in range(12)]
    assert end.failures == 0
    assert end.metrics["episodes_played_again"] == 4
    steps = trajectories.read(harness.folder / "run", "train").to_pandas()
    assert steps.groupby("episode").size().tolist() == [5] * 12
    (harness.folder / socket.format(2)).unlink()


async def test_until_and_stop_end_all(harness):
    await harness.pair(vector=4)
    records, end = await harness.play(
        episodes=5000, vector=4, until=(Until(metric="return", at_least=5.0, average_over=8),)
    )
    assert end.end == "until"
    assert outcomes(records)[:8] == ["terminated"] * 8
    assert len(records) <= 20
    controller = await harness.start("simulation", incarnation=2)
    await controller.perform(harness.command(name="b", phase=1, vector=4, episodes=10**6, mode="eval"))
    link = harness.links["simulation"]
    await link.next(EpisodeEnded)
    await controller.perform(StopPartCommand(phase=1, reason="abort"))
    records, end = await harness.end()
    assert set(outcomes(records)) <= {"cancelled", "terminated"}
    assert end.end == "stopped"
