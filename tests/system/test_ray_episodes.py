"""A phase with episodes on a Ray cluster, from the run file to the table of steps."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from governor.episodes import trajectories

pytestmark = [pytest.mark.system, pytest.mark.ray]

EPISODES = 1000
PLAYERS = {"environment": "lake", "agents": ["walker"], "max_steps": 100}
RUN = {
    "name": "far",
    "conductors": {
        "environments": {"lake": {"entry": "gymnasium:FrozenLake-v1", "params": {"is_slippery": False}}},
        "agents": {"walker": {"entry": "user_code:Walker"}},
    },
    "phases": [
        {"name": "train", "simulate": {**PLAYERS, "episodes": 20, "transport": "in_process"}},
        {
            "name": "evaluate",
            "mode": "eval",
            "simulate": {**PLAYERS, "episodes": EPISODES, "workers": 2, "transport": "ray", "chunk": 100},
            "tasks": [{"id": "beside", "call": "user_code:once"}],
        },
    ],
}


@pytest.mark.long
async def test_the_death_of_the_driver_costs_one_conductor_and_no_episode(instance):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(RUN, folder=instance.folder)
        await tree.until(uid, "episode.ended", phase=1)
        os.kill(await tree.pid_of(uid, "tasks"), signal.SIGKILL)
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        started = [e.data["conductor"] for e in events if e.kind == "conductor.started"]
        assert Counter(started) == {"simulation": 1, "tasks": 2}
        played = [e.data["episode"] for e in events if e.kind == "episode.ended" and e.data["phase"] == 1]
        assert sorted(episode["index"] for episode in played) == list(range(EPISODES))
        assert {episode["outcome"] for episode in played} <= {"terminated", "truncated"}
        steps = Counter(
            trajectories.read(instance.folder / "s" / "runs" / uid, "evaluate")["episode"].to_pylist()
        )
        assert steps == {episode["index"]: episode["steps"] for episode in played}
