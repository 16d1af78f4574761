"""Agents of Stable-Baselines3 that are killed go on with what they had learned."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3")

from governor.episodes.records import state_file

pytestmark = [pytest.mark.system, pytest.mark.long]
ROOT = Path(__file__).parents[3]
PPO = {"algorithm": "PPO", "n_steps": 64, "device": "cpu"}
DQN = {"algorithm": "DQN", "total_timesteps": 5000, "learning_starts": 100, "device": "cpu"}


async def end_of(tree, uid, *, victim, after):
    """The events of the run, in which `victim` is killed after so many episodes, and its result. Torch takes its time to import."""
    found, ended = [], 0
    async with asyncio.timeout(280), contextlib.aclosing(tree.executor.watch(uid)) as events:
        async for event in events:
            found.append(event)
            ended += event.kind == "episode.ended"
            if ended == after and event.kind == "episode.ended":
                os.kill(await tree.pid_of(uid, victim), signal.SIGKILL)
    return found, await tree.executor.result(uid)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("params", "transport", "victim"),
    [
        (PPO, "in_process", "simulation"),
        (PPO, "conductors", "agent.learner"),
        (DQN, "in_process", "simulation"),
    ],
    ids=lambda value: value["algorithm"] if isinstance(value, dict) else value,
)
async def test_a_killed_agent_goes_on_with_what_it_had_learned(instance, params, transport, victim):
    instance.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    wanted = {
        "name": "pole",
        "conductors": {
            "environments": {"pole": {"entry": "gymnasium:CartPole-v1", "pool": 4}},
            "agents": {"learner": {"entry": "governor.episodes.sb3:Agent", "params": params}},
        },
        "phases": [
            {
                "name": "train",
                "simulate": {
                    "environment": "pole", "agents": ["learner"], "episodes": 60, "workers": 4, "transport": transport,
                },
            }
        ],
    }  # fmt: skip
    async with instance.serve() as tree:
        uid = await tree.executor.submit(wanted, folder=instance.folder)
        events, result = await end_of(tree, uid, victim=victim, after=30)
    assert result.outcome == "finished", result.reason
    death = next(e for e in events if e.kind == "conductor.exited" and not e.data["expected"])
    assert (death.data["conductor"], death.data["exit_code"]) == (victim, -9)
    steps = {True: 0, False: 0}
    for event in events:
        if event.kind == "episode.ended":
            steps[event.seq < death.seq] += event.data["episode"]["steps"]
    assert min(steps.values()) > 100
    [path] = instance.folder.glob("s/**/agents/learner.state")
    state = state_file.load(path)
    learned = state["counters"]["num_timesteps"]
    assert steps[False] < learned <= sum(steps.values()) + 4 * 500, "what was saved before, and all since"
    assert state["trainings"] == state_file.weight_version(path) > 0
    if params is DQN:
        assert state["replay_buffer"]["pos"] == learned
