"""A killed forkserver ends all conductors of all runs: each run continues and uses up one restart."""

from __future__ import annotations

import os
import signal
from collections import Counter

import psutil
import pytest

pytestmark = pytest.mark.system


def kill_forkserver(conductor: int) -> int:
    pid = psutil.Process(conductor).ppid()
    os.kill(pid, signal.SIGKILL)
    return pid


async def test_one_restart_is_enough_for_all_conductors_of_a_run(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(restarts=1), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        forkserver = kill_forkserver(await tree.pid_of(uid, "simulation"))
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        deaths = [e.data for e in events if e.kind == "conductor.exited" and not e.data["expected"]]
        assert {death["conductor"] for death in deaths} == {"environment.lake", "agent.walker", "simulation"}
        assert {death["reason"] for death in deaths} == {f"its forkserver (pid {forkserver}) died"}
        played = Counter(e.data["episode"]["index"] for e in events if e.kind == "episode.ended")
        assert played == Counter(range(600))


@pytest.mark.long
async def test_a_frozen_forkserver_is_replaced_when_a_run_begins(instance, walk):
    async with instance.serve() as tree:
        forkserver = psutil.Process(tree.broker.pid).parent()
        forkserver.suspend()
        uid = await tree.executor.submit(walk(restarts=1, episodes=20), folder=instance.folder)
        await tree.until(uid, "run.transition", to="starting")
        assert (await tree.executor.status()).state == "serving", "it answers meanwhile"
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        deaths = [e.data for e in events if e.kind == "conductor.exited" and not e.data["expected"]]
        assert {death["forkserver"] for death in deaths} == {forkserver.pid}
        assert not forkserver.is_running()


@pytest.mark.long
async def test_without_restarts_the_reason_names_the_forkserver(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(restarts=0), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        forkserver = kill_forkserver(await tree.pid_of(uid, "simulation"))
        _, result = await tree.end(uid)
        assert result.outcome == "failed"
        assert result.reason.endswith(f" was killed by SIGKILL: its forkserver (pid {forkserver}) died")
