"""Processes of environments that die: no conductor is replaced, no other environment, and nothing of them is left."""

from __future__ import annotations

import os
import signal
from collections import Counter

import psutil
import pytest

from tests.support.reasons import without_place

pytestmark = pytest.mark.system


async def processes_of(tree, uid):
    """The forkserver of the environment conductor, and its environments, by name."""
    conductor = psutil.Process(await tree.pid_of(uid, "environment.lake"))
    return {each.name(): each for each in conductor.children(recursive=True)}


def unexpected(events):
    return [e.data for e in events if e.kind == "conductor.exited" and not e.data["expected"]]


@pytest.mark.parametrize("victim", ["lake.0", "own-forkserver"])
async def test_killed_processes_of_environments_are_replaced_without_a_restart(instance, walk, victim):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(restarts=0), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        before = await processes_of(tree, uid)
        assert set(before) == {"own-forkserver", "lake.0", "lake.1"}
        before[victim].kill()
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        assert unexpected(events) == []
        played = Counter(e.data["episode"]["index"] for e in events if e.kind == "episode.ended")
        assert played == Counter(range(600))


async def test_environments_die_with_their_conductor(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        before = await processes_of(tree, uid)
        os.kill(await tree.pid_of(uid, "environment.lake"), signal.SIGKILL)
        await tree.until(uid, "conductor.exited", conductor="environment.lake")
        assert not [name for name, each in before.items() if each.is_running() and each.status() != "zombie"]
        _, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason


@pytest.mark.parametrize("vector", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_the_reason_of_a_crashed_episode_names_user_code_that_calls_exit(instance, walk, vector):
    run = walk(restarts=0, episodes=4)
    run["conductors"]["environments"] = {"lake": {"entry": "user_code:LeavesAtOnce", "vector": vector}}
    [phase] = run["phases"]
    run["phases"] = [{**phase, "simulate": {**phase["simulate"], "workers": 1}, "on_failure": "continue"}]
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run, folder=instance.folder)
        events, result = await tree.end(uid)
    assert result.outcome == "finished", result.reason
    assert unexpected(events) == []
    ended = [event.data["episode"] for event in events if event.kind == "episode.ended"]
    assert {episode["outcome"] for episode in ended} == {"crashed"}
    assert len(ended) == 4
    assert without_place(ended[0]["reason"]).startswith(
        "the process of environment 'lake' exited: exit code 3: os._exit(3) in environment.step of episode "
    )
