"""Vectors through conductors: the episodes of a vector in process, with every fault in its place."""

import asyncio

import numpy as np
import pytest
from in_process_commands import episodes, inside, outcomes, vector

from governor.episodes import trajectories
from governor.episodes.rules.seeds import episode_seed
from governor.messages import EpisodeEnded, StopPart, Until


def told(records):
    return sorted((r.index, r.seed, r.outcome, r.value, r.steps, r.reason) for r in records)


@pytest.mark.parametrize("entry", ["gymnasium:CartPole-v1", "gymnasium:FrozenLake-v1"])
@pytest.mark.parametrize("agent", ["walk_world:Reflex", "walk_world:Many"])
async def test_an_episode_is_the_same_as_alone_and_in_process(house, entry, agent):
    alone, _ = await house.play(
        episodes=30, max_steps=40, name="alone", **inside(entry=entry, agent="walk_world:Reflex")
    )
    (house.folder / "run/agents/walker.state").unlink()
    await house.pair(entry=entry, agent=agent, vector=7)
    beside, end = await house.play(episodes=30, max_steps=40, vector=7, incarnation=2)
    assert told(beside) == told(alone)
    assert {record.worker for record in beside} == set(range(7))
    assert (end.end, end.first_failure) == ("max_episodes", "")
    assert house.state()["learned"] == sum(record.steps for record in alone)
    steps = [trajectories.read(house.folder / "run", phase).to_pandas() for phase in ("alone", "train")]
    for column in ("episode", "step", "action", "reward", "terminated", "truncated", "seed", "outcome"):
        assert steps[0][column].tolist() == steps[1][column].tolist(), column
    assert np.array_equal(np.stack(steps[0].observation), np.stack(steps[1].observation))


async def test_the_agents_calls_come_in_the_order_of_a_vector_in_process(house):
    """It draws its actions from one generator: another order would be other episodes."""
    lake = {"entry": "gymnasium:FrozenLake-v1", "agent": "walk_world:Random"}
    inner, _ = await house.play(episodes=40, max_steps=9, name="inner", **vector(5, **lake))
    (house.folder / "run/agents/walker.state").unlink()
    await house.pair(vector=5, **lake)
    outer, _ = await house.play(episodes=40, max_steps=9, vector=5, incarnation=2)
    assert told(outer) == told(inner)


async def test_vectors_of_numbers_cross_and_may_be_written_to(house):
    await house.pair(entry="walk_world:Overwrites", vector=3)
    records, _ = await house.play(episodes=5, max_steps=4, vector=3)
    assert outcomes(records) == ["truncated"] * 5
    steps = trajectories.read(house.folder / "run", "train").to_pandas()
    assert [row.tolist() for row in steps.observation[:4]] == [[float(at)] * 2 for at in range(4)]
    assert (np.abs(np.stack(steps.action)) <= 1).all()


@pytest.mark.parametrize("mode", ["train", "eval"])
async def test_workers_may_have_a_vector_each(house, mode):
    await house.pair(vector=3, pool=2)
    records, _ = await house.play(episodes=40, workers=2, vector=3, mode=mode)
    assert [(r.index, r.value) for r in sorted(records, key=lambda r: r.index)] == [
        (i, 5.0) for i in range(40)
    ]
    assert {record.worker for record in records} <= set(range(6))
    assert (house.state() or {}).get("learned") == (200 if mode == "train" else None)


@pytest.mark.parametrize("fault", ["step", "exit", "nan", "four"])
async def test_a_fault_is_one_episodes_alone(house, fault):
    await house.pair(vector=4, fault=fault, flag=str(house.folder / "flag"))
    records, end = await house.play(episodes=8, vector=4)
    assert sorted(outcomes(records)) == ["failed"] + ["terminated"] * 7
    (failed,) = [record for record in records if record.outcome == "failed"]
    assert failed.steps == 2
    assert failed.reason.startswith("environment.step: ")
    assert end.failures == 1


async def test_a_reset_that_fails_is_one_episodes_alone(house):
    await house.pair(vector=4, fault="reset")
    records, _ = await house.play(episodes=9, vector=4)
    assert {(r.outcome, r.reason) for r in records} == {
        ("failed", "environment.reset: RuntimeError: no floor")
    }
    assert sorted(record.index for record in records) == list(range(9))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("act", "agent.act: KeyError: 'observation'"),
        ("learn", "agent.learn: ZeroDivisionError"),
        ("bad_action", "agent.act: ValueError: 7 is not in Discrete(2)"),
    ],
)
async def test_a_fault_of_the_agent_is_one_episodes_alone(house, fault, reason):
    await house.pair(vector=4, agent_params={"fault": fault, "at": 6, "flag": str(house.folder / "flag")})
    records, end = await house.play(episodes=8, vector=4)
    failed = [record for record in records if record.outcome == "failed"]
    assert {record.reason for record in failed} == {reason}
    assert end.failures == len(failed) == (8 if fault == "learn" else 1)


async def test_an_agent_that_cannot_act_for_all_fails_them_all(house):
    await house.pair(vector=2, agent="walk_world:Few")
    records, _ = await house.play(episodes=2, vector=2)
    assert {(r.outcome, r.reason) for r in records} == {
        ("failed", "agent.act: ValueError: 1 actions for 2 observations")
    }


async def test_an_environment_that_hangs_is_found_and_its_neighbours_play_again(house):
    start = int(np.random.default_rng(episode_seed(7, 0, 2)).integers(100))
    await house.pair(vector=4, entry="walk_world:Unlucky", fault="sleep", start=start)
    records, end = await house.play(episodes=9, vector=4, episode_timeout=0.5)
    (hung,) = [record for record in records if record.outcome == "timed_out"]
    assert (hung.index, hung.reason) == (2, "longer than 0.5 s, and environment 'lake' hangs")
    assert sorted(outcomes(records)) == ["terminated"] * 8 + ["timed_out"]
    assert all(record.steps == 5 for record in records if record.index != 2)
    assert end.metrics["episodes_played_again"] == 3
    steps = trajectories.read(house.folder / "run", "train").to_pandas()
    assert steps.groupby("episode").size().tolist() == [5, 5, 2, 5, 5, 5, 5, 5, 5]


async def test_a_slow_one_is_not_taken_for_one_that_hangs(house):
    start = int(np.random.default_rng(episode_seed(7, 0, 2)).integers(100))
    await house.pair(vector=4, entry="walk_world:Unlucky", fault="slow", start=start)
    records, end = await house.play(episodes=9, vector=4, episode_timeout=0.1)
    assert {r.reason for r in records if r.index == 2} == {"longer than 0.1 s"}
    assert "episodes_played_again" not in end.metrics


async def test_an_agent_that_hangs_for_all_makes_its_conductor_give_up(house):
    await house.pair(vector=4, agent="walk_world:Stuck")
    controller = await house.start("simulation")
    await controller.perform(house.command(episodes=4, vector=4, episode_timeout=0.3))
    assert "hangs" in await asyncio.wait_for(house.failures["agent.walker"], 20)
    link = house.links["simulation"]
    for after in range(4):
        await asyncio.wait_for(link.next(EpisodeEnded, after=after), 20)
    assert {(r.outcome, r.reason) for r in episodes(link)} == {
        ("timed_out", "longer than 0.3 s, and agent 'walker' hangs")
    }


@pytest.mark.parametrize("dies", ["environment", "agent"])
async def test_a_conductor_that_dies_costs_no_episode(house, dies):
    flag = str(house.folder / "flag")
    worlds = {"entry": "walk_world:Walk", "params": {}, "pool": 1, "vector": 4}
    minds = {"entry": "walk_world:Agent", "params": {}}
    if dies == "environment":
        worlds["params"] = {"fault": "die", "flag": flag}
    else:
        minds = {"entry": "walk_world:Dies", "params": {"at": 11, "flag": flag}}
    name, settings, socket = {
        "environment": ("environment.lake", worlds, "environment.lake.{}.0"),
        "agent": ("agent.walker", minds, "agent.walker.{}"),
    }[dies]
    child = house.spawn(name, **settings)
    if dies == "environment":
        await house.start("agent.walker", **minds)
    else:
        await house.start("environment.lake", **worlds)
    controller = await house.start("simulation")
    await controller.perform(house.command(episodes=12, vector=4))
    assert await asyncio.to_thread(child.wait, 20) == 9
    (house.folder / socket.format(1)).unlink()
    house.spawn(name, incarnation=2, **settings)
    records, end = await house.end()
    assert sorted((r.index, r.outcome, r.steps) for r in records) == [(i, "terminated", 5) for i in range(12)]
    assert end.failures == 0
    assert end.metrics["episodes_played_again"] == 4
    steps = trajectories.read(house.folder / "run", "train").to_pandas()
    assert steps.groupby("episode").size().tolist() == [5] * 12
    (house.folder / socket.format(2)).unlink()


@pytest.mark.parametrize("flow", ["RESET", "RESTART"])
async def test_reset_and_restart_build_anew_and_go_on(house, flow):
    await house.pair(vector=3)
    records, end = await house.play(episodes=20, vector=3, flow=flow)
    assert outcomes(records) == ["terminated"] * 20
    assert end.end == "max_episodes"
    assert house.state()["learned"] == 100


async def test_until_and_stop_end_all(house):
    await house.pair(vector=4)
    records, end = await house.play(
        episodes=5000, vector=4, until=(Until(metric="return", at_least=5.0, average_over=8),)
    )
    assert end.end == "until"
    assert outcomes(records)[:8] == ["terminated"] * 8
    assert len(records) <= 20
    controller = await house.start("simulation", incarnation=2)
    await controller.perform(house.command(name="b", phase=1, vector=4, episodes=10**6, mode="eval"))
    link = house.links["simulation"]
    await link.next(EpisodeEnded)
    await controller.perform(StopPart(phase=1, reason="abort"))
    records, end = await house.end()
    assert set(outcomes(records)) <= {"cancelled", "terminated"}
    assert end.end == "stopped"


async def test_a_pause_lets_the_others_come_to_their_end(house):
    await house.pair(vector=4)
    controller = await house.start("simulation", flow="PAUSE")
    command = house.command(episodes=2000, vector=4)
    await controller.perform(command)
    link = house.links["simulation"]
    await link.next(EpisodeEnded)
    with pytest.raises(TimeoutError):
        await house.end(seconds=0.3)
    link.flow = "CONTINUE"
    await controller.perform(command)
    records, _ = await house.end()
    assert outcomes(records) == ["terminated"] * 2000
