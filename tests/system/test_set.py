"""A run at work gets other values: at once, once what plays has ended, or when a phase begins; also over kills."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import suppress

import pytest

from governor.errors import AlreadyEnded, NoAnswer, RunFileError, TryAgain, UsageError
from governor.runs.run_changes import NEXT_EPISODES, NOW

pytestmark = pytest.mark.system

EPISODES = 30
AGENT = """
import time
from user_code import Pauses

class Held(Pauses):
    def act(self, observation, *, explore):
        time.sleep(0.02)  # so long that each worker gets its turn on any machine
        return super().act(observation, explore=explore)
"""


def held(walk, instance, *, transport="conductors", **more):
    """It plays no step before `instance.folder / "pause"` is gone."""
    (instance.folder / "pause").touch()
    (instance.folder / "held.py").write_text(AGENT)
    made = walk(entry="held:Held", episodes=EPISODES)
    made["conductors"]["environments"]["lake"]["pool"] = 4
    [train] = made["phases"]
    train["simulate"] |= {"transport": transport, "workers": 1}
    again = {**train, "name": "again", "simulate": {**train["simulate"], "episodes": 9}}
    return {**made, "phases": [train, again], **more}


def let_go(instance):
    (instance.folder / "pause").unlink()


def played(events):
    return Counter((e.data["phase"], e.data["episode"]["index"]) for e in events if e.kind == "episode.ended")


async def set_when_it_waits(tree, uid, values):
    """Sent again where the run takes longer to leave its slot than one request waits."""
    while True:
        try:
            return await tree.executor.set(uid, values)
        except (TryAgain, NoAnswer):
            await asyncio.sleep(0.1)


async def at_work(tree, uid):
    await tree.until(uid, "phase.started")


@pytest.mark.parametrize("transport", ["conductors", "in_process"])
async def test_workers_and_a_later_phase_change_and_no_episode_is_lost_or_played_twice(
    instance, walk, transport
):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(held(walk, instance, transport=transport), folder=instance.folder)
        await at_work(tree, uid)
        values = {"train.simulate.workers": 3, "again.simulate.episodes": 4, "limits.wall_clock": "1h"}
        found = await tree.executor.set(uid, values, "more machine", dry_run=True)
        assert [each.since for each in found.values] == [NEXT_EPISODES, "when phase again begins", NOW]
        assert (await tree.executor.set(uid, values, "more machine")).changed
        assert not (await tree.executor.set(uid, values)).changed
        let_go(instance)
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        expected = [*((0, index) for index in range(EPISODES)), *((1, index) for index in range(4))]
        assert played(events) == Counter(expected)
        workers = {e.data["episode"]["worker"] for e in events if e.kind == "episode.ended"}
        assert workers == {0, 1, 2}
        [changed] = [e.data for e in events if e.kind == "run.plan_change_requested"]
        assert (changed["by"]["uid"], changed["reason"]) == (os.getuid(), "more machine")
        assert [each["key"] for each in changed["changes"]] == [*values]
        [left, *_] = [e.data for e in events if e.kind == "conductor.exited"]
        assert (left["conductor"], left["expected"], left["exit_code"]) == ("simulation", True, 0)
        with pytest.raises(AlreadyEnded):
            await tree.executor.set(uid, values)


async def test_the_processes_that_die_meanwhile_and_the_daemon_begin_with_the_new_values(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(held(walk, instance), folder=instance.folder)
        await at_work(tree, uid)
        await tree.executor.set(uid, {"train.simulate.workers": 2, "restart.conductors": 7})
        if (pid := await tree.pid_of(uid, "simulation")) is not None:
            with suppress(ProcessLookupError):  # it may have left, where no episode had begun
                os.kill(pid, signal.SIGKILL)
        os.kill(tree.daemon.pid, signal.SIGKILL)
        await tree.gone()
        async with instance.serve() as other:
            let_go(instance)
            events, result = await other.end(uid)
            assert result.outcome == "finished", result.reason
            assert played(events)[0, EPISODES - 1] == 1
            assert {e.data["episode"]["worker"] for e in events if e.kind == "episode.ended"} == {0, 1}


async def test_a_limit_below_what_is_used_ends_the_run_and_one_that_is_raised_lets_it_end(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(held(walk, instance, limits={"episodes": 5}), folder=instance.folder)
        await at_work(tree, uid)
        await tree.executor.set(uid, {"limits.episodes": 500})
        let_go(instance)
        assert (await tree.end(uid))[1].outcome == "finished"
        uid = await tree.executor.submit(held(walk, instance), folder=instance.folder)
        await at_work(tree, uid)
        await tree.executor.set(uid, {"limits.wall_clock": "1ms"})
        result = (await tree.end(uid))[1]
        assert (result.outcome, result.reason) == (
            "failed",
            "limit wall_clock of 0.001 s reached in phase train",
        )


async def test_a_task_that_hangs_gets_a_time_out_and_another_try(instance):
    task = {"id": "nap", "call": "user_code:nap", "args": {"seconds": 10**6}}
    async with instance.serve() as tree:
        made = {"name": "nap", "phases": [{"name": "night", "grace": "1s", "tasks": [task]}]}
        uid = await tree.executor.submit(made, folder=instance.folder)
        await tree.until(uid, "task.started")
        found = await tree.executor.set(uid, {"night.tasks.nap.timeout": "1s", "night.tasks.nap.retries": 1})
        assert {each.since for each in found.values} == {NOW}
        events, result = await tree.end(uid)
        assert result.outcome == "failed"
        [record] = [e.data["record"] for e in events if e.kind == "task.ended"]
        assert (record["outcome"], record["attempts"]) == ("timed_out", 2)
        assert record["error"].startswith("ran longer than its timeout of 1 s")


async def test_what_can_not_change_says_so_and_changes_nothing(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(held(walk, instance), folder=instance.folder)
        await at_work(tree, uid)
        with pytest.raises(UsageError, match=r"agents.walker.params can't be set now: what runs uses it"):
            await tree.executor.set(uid, {"agents.walker.params": {"a": 1}, "limits.wall_clock": "1h"})
        with pytest.raises(RunFileError, match="9 workers need a pool of 9"):
            await tree.executor.set(uid, {"train.simulate.workers": 9})
        await tree.executor.pause(uid, hard=True)
        changed = {"train.simulate.workers": 2, "environments.lake.params": {"is_slippery": True}}
        assert (await set_when_it_waits(tree, uid, changed)).state == "queued", "it leaves its slot first"
        await tree.executor.continue_(uid)
        let_go(instance)
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        assert {e.data["episode"]["worker"] for e in events if e.kind == "episode.ended"} == {0, 1}
