"""An agent behind conductors is where the record is, whichever process has died."""

import asyncio
from importlib import import_module

import numpy as np
import pytest

from governor.conductors import agent as agent_conductor
from governor.episodes import trajectories
from governor.episodes.records import state_file
from governor.messages import AgentRestored, Checkpoint, Done, Failures
from tests.support.in_process_commands import episodes

EPISODES = 30


@pytest.fixture(autouse=True)
def saves_once(monkeypatch):
    """The first state that may be saved is the only one, until the phase is over."""
    monkeypatch.setattr("governor.episodes.learned.SPARING", 10**9)


async def interrupted(harness, **params):
    """The records of a phase whose simulation ended within the tenth episode, with some behind the saved state."""
    await harness.start("environment.lake", entry="walk_world:Walk", params={}, pool=1)
    await harness.start("agent.walker", entry="exact_world:Draws", params={**params, "waits_at": 9 * 5 + 3})
    controller = await harness.start("simulation")
    world = import_module("exact_world")
    world.IS_DUE.clear()
    world.GOES_ON.clear()
    assert await controller.perform(harness.command(episodes=EPISODES)) == Done()
    await asyncio.to_thread(world.IS_DUE.wait, 60)
    await controller.close()
    world.GOES_ON.set()
    records = episodes(harness.links["simulation"])
    assert 4 < len(records) < EPISODES
    return records


def restored(harness):
    return [event for event in harness.links["agent.walker"].events if isinstance(event, AgentRestored)]


def actions(harness):
    return trajectories.read(harness.folder / "run", "train")["action"].to_pylist()


def drawn(number):
    """What an agent draws that is never interrupted."""
    random = np.random.default_rng(7)
    return [int(random.integers(2)) for _ in range(number)]


@pytest.mark.parametrize("dies", ["simulation", "agent"])
async def test_the_actions_are_those_of_an_undisturbed_training(harness, dies):
    done = await interrupted(harness, slow=0.001)
    if dies == "agent":
        await harness.conductors["agent.walker"].close()
        await harness.start("agent.walker", incarnation=2, entry="exact_world:Draws", params={})
    rest, _ = await harness.play(incarnation=2, done=done, episodes=EPISODES)
    assert len(done) + len(rest) == EPISODES
    assert actions(harness) == drawn(EPISODES * 5)
    [found] = restored(harness)
    assert (found.agent, found.reason) == ("walker", "")
    assert 0 < found.episodes < len(done)
    assert found.steps == 5 * found.episodes
    assert harness.state()["steps"] == EPISODES * 5


async def test_a_replay_takes_longer_than_a_conductor_may_be_unavailable(harness, monkeypatch):
    monkeypatch.setattr(agent_conductor, "RESTORING_SECONDS", 0.05)
    done = await interrupted(harness, slow=0.001)
    await harness.conductors["agent.walker"].close()
    settings = {"entry": "exact_world:Draws", "params": {"slow": 0.1}}
    await harness.start("agent.walker", incarnation=2, **settings)
    began = asyncio.get_running_loop().time()
    await harness.play(incarnation=2, done=done, episodes=len(done) + 1, return_seconds=1.0)
    [found] = restored(harness)
    assert found.reason == ""
    assert asyncio.get_running_loop().time() - began > found.steps * 0.1 > 1.0
    assert harness.conductors["agent.walker"].progress >= found.steps
    assert actions(harness) == drawn(5 * (len(done) + 1))


async def test_the_end_of_a_phase_that_was_not_saved_is_made_up_for(harness):
    """All of its episodes are on record, but the simulation died before the agent was saved."""
    done = await interrupted(harness, slow=0.001)
    await harness.conductors["agent.walker"].close()
    assert harness.state()["steps"] < 5 * len(done)
    await harness.start("agent.walker", incarnation=2, entry="exact_world:Draws", params={})
    rest, end = await harness.play(incarnation=2, done=done, episodes=len(done))
    assert (rest, end.end) == ([], "max_episodes")
    assert harness.state()["steps"] == 5 * len(done)
    [found] = restored(harness)
    assert (found.reason, found.episodes > 0) == ("", True)


@pytest.mark.parametrize("follows", [0, 3], ids=["end of the phase", "within it"])
async def test_a_checkpoint_that_an_earlier_process_did_not_take_has_all_that_is_on_record(harness, follows):
    """The saved state is older: of the first episodes alone."""
    done = await interrupted(harness, slow=0.001)
    await harness.conductors["agent.walker"].close()
    assert harness.state()["steps"] < 5 * len(done)
    await harness.start("agent.walker", incarnation=2, entry="exact_world:Draws", params={})
    every, episodes_ = Checkpoint(every=len(done)), len(done) + follows
    rest, end = await harness.play(incarnation=2, done=done, episodes=episodes_, checkpoint=every)
    assert (len(rest), end.end, end.first_failure) == (follows, "max_episodes", "")
    taken = harness.folder / f"run/checkpoints/train/walker.{len(done)}.state"
    assert state_file.load(taken)["steps"] == 5 * len(done)
    assert harness.state()["steps"] == 5 * episodes_


async def test_what_was_learned_is_kept_where_a_phase_ends_with_the_death_of_an_environment(harness):
    mark = {"episodes": 9, "mark": str(harness.folder / "mark")}
    await harness.start("environment.lake", entry="exact_world:Mortal", params=mark, pool=1)
    await harness.start("agent.walker", entry="exact_world:Draws", params={})
    records, end = await harness.play(episodes=EPISODES, failures=Failures(at_most=0))
    assert ([record.outcome for record in records], end.end) == (["terminated"] * 9 + ["crashed"], "failures")
    assert harness.state()["steps"] == 9 * 5
