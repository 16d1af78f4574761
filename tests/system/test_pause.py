"""Pauses of a user on whole process trees: what runs ends, nothing begins, and a dead daemon's successor holds to it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter

import pytest

from governor.errors import AlreadyEnded, TryAgain, UsageError

pytestmark = pytest.mark.system

SETTLED = 1.0
"""Seconds; an episode takes some milliseconds, a chunk of them less than half a second, a task 0.2 s."""
EPISODES = 600
TASKS = 60


def slow(walk, *, episodes=EPISODES, transport="conductors", **more):
    made = walk(entry="user_code:Slow", episodes=episodes)
    made["phases"][0]["mode"] = "eval"  # on Ray no agent learns
    made["phases"][0]["simulate"]["transport"] = transport
    return {**made, **more}


def naps(**more):
    task = {"id": "nap", "call": "user_code:once_slowly", "args": {"seconds": 0.2}, "repeat": TASKS}
    after = {"id": "after", "call": "user_code:once_slowly", "args": {"seconds": 0.2}, "depends_on": ["nap"]}
    return {"name": "naps", "phases": [{"name": "naps", "tasks": [task, after]}], **more}


async def count(tree, uid):
    [run] = (await tree.executor.status(uid)).runs
    return run.episodes_ended + run.tasks_ended


async def assert_nothing_begins(tree, uid):
    """What runs now may end. Returns how many episodes and tasks have ended then."""
    before, settled = -1, await count(tree, uid)
    while before != settled:
        await asyncio.sleep(SETTLED)  # what is looked for is that nothing happens
        before, settled = settled, await count(tree, uid)
    [run] = (await tree.executor.status(uid)).runs
    assert (run.paused, run.waits_for) == (True, f"`governor continue {uid}` (paused: a guest)")
    return settled


def done(events):
    episodes = Counter(e.data["episode"]["index"] for e in events if e.kind == "episode.ended")
    tasks = Counter(
        (e.data["record"]["task"], e.data["record"]["run"]) for e in events if e.kind == "task.ended"
    )
    return episodes + tasks


@pytest.mark.parametrize("transport", ["conductors", "in_process", "ray"])
async def test_no_episode_begins_until_the_run_continues(instance, walk, transport):
    async with instance.serve() as tree:
        made = slow(walk, transport=transport, limits={"wall_clock": 300})
        uid = await tree.executor.submit(made, folder=instance.folder)
        await tree.until(uid, "episode.ended")
        found = await tree.executor.pause(uid, "a guest")
        assert (found.changed, found.state) == (True, "running")
        assert not (await tree.executor.pause(uid, "again")).changed
        assert 0 < await assert_nothing_begins(tree, uid) < EPISODES
        assert (await tree.executor.continue_(uid, dry_run=True)).changed
        assert (await tree.executor.continue_(uid)).changed
        assert not (await tree.executor.continue_(uid)).changed
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        assert done(events) == Counter(range(EPISODES))
        [paused] = [event for event in events if event.kind == "run.pause_requested"]
        [went_on] = [event for event in events if event.kind == "run.continue_requested"]
        assert paused.data["by"]["uid"] == os.getuid()
        assert result.seconds < result.ended_at - result.started_at - (went_on.at - paused.at) + 0.5
        with pytest.raises(AlreadyEnded):
            await tree.executor.pause(uid)


async def test_no_task_begins_and_those_that_follow_wait_too(instance):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(naps(), folder=instance.folder)
        await tree.until(uid, "task.ended")
        await tree.executor.pause(uid, "a guest")
        assert 0 < await assert_nothing_begins(tree, uid) < TASKS
        await tree.executor.continue_(uid)
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        assert done(events) == Counter([*(("nap", run) for run in range(TASKS)), ("after", 0)])


async def test_a_run_that_is_just_being_assigned_is_paused(instance, walk):
    async with instance.serve() as tree:
        for _ in range(5):
            uid = await tree.executor.submit(walk(episodes=3), folder=instance.folder)
            assert (await tree.executor.pause(uid, "a guest")).changed
            [run] = (await tree.executor.status(uid)).runs
            assert (run.paused, run.episodes_ended) == (True, 0)
            await tree.executor.continue_(uid)
            assert (await tree.end(uid))[1].outcome == "finished"


async def test_a_phase_that_ends_in_a_pause_lets_the_next_one_begin(instance, walk):
    """Its tasks and its episodes on Ray share their runners; the tasks have ended when it is paused."""
    simulate = walk(entry="user_code:Slow", episodes=EPISODES)["phases"][0]["simulate"] | {"transport": "ray"}
    task = {"id": "nap", "call": "user_code:once_slowly", "args": {"seconds": 0.0}}
    made = walk(entry="user_code:Slow") | {
        "phases": [
            {"name": "both", "mode": "eval", "simulate": simulate | {"chunk": 10}, "tasks": [task]},
            {"name": "then", "mode": "eval", "simulate": simulate | {"episodes": 3}},
        ]
    }
    made["phases"][0]["until"] = [{"wall_clock": "8s"}]  # the clock of a phase goes on
    async with instance.serve() as tree:
        uid = await tree.executor.submit(made, folder=instance.folder)
        await tree.until(uid, "part.ended", part="tasks")
        await tree.executor.pause(uid, "a guest")
        await tree.until(uid, "phase.started", phase="then")
        assert await assert_nothing_begins(tree, uid) == 0
        await tree.executor.continue_(uid)
        _, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        assert sum(result.phases[1].episodes.values()) == 3


async def test_user_code_that_holds_its_process_up_is_told_when_it_lets_go(instance, walk):
    """It does not answer for longer than a command may take, and is not replaced for that."""
    async with instance.serve() as tree:
        made = walk(entry="user_code:Holds", episodes=20)
        made["phases"][0]["simulate"]["transport"] = "in_process"
        made["conductors"]["agents"]["walker"]["params"] = {"seconds": 13}
        uid = await tree.executor.submit(made, folder=instance.folder)
        await tree.until(uid, "phase.started")
        assert (await tree.executor.pause(uid, "a guest")).changed
        assert await assert_nothing_begins(tree, uid) < 20
        await tree.executor.continue_(uid)
        events, result = await tree.end(uid)
        assert (result.outcome, done(events)) == ("finished", Counter(range(20)))
        assert [event.kind for event in events].count("conductor.started") == 1


async def test_a_paused_run_is_aborted(instance):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(naps(), folder=instance.folder)
        await tree.until(uid, "task.ended")
        await tree.executor.pause(uid)
        await tree.executor.abort(uid)
        _, result = await tree.end(uid)
        assert result.outcome == "aborted"


async def test_a_hard_pause_frees_the_slot_and_outlives_a_kill_of_the_daemon(instance, walk):
    async with instance.serve("--slots", "1") as tree:
        uid = await tree.executor.submit(slow(walk, episodes=300), folder=instance.folder)
        other = await tree.executor.submit(walk(episodes=3), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        assert (await tree.executor.pause(uid, "a guest", hard=True)).changed
        _, result = await tree.end(other)
        assert result.outcome == "finished"
        assert not (await tree.executor.pause(uid, hard=True)).changed
        tree.daemon.send_signal(signal.SIGKILL)
        await tree.gone()
    async with instance.serve("--slots", "1") as tree:
        [run] = (await tree.executor.status(uid)).runs
        assert (run.state, run.paused) == ("queued", True)
        assert run.waits_for == f"`governor continue {uid}` (paused: a guest)"
        third = await tree.executor.submit(walk(episodes=3), folder=instance.folder)
        assert (await tree.end(third))[1].outcome == "finished", "others pass it"
        assert (await tree.executor.continue_(uid)).changed
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        assert done(events) == Counter(range(300))


async def test_a_soft_pause_outlives_a_kill_of_the_daemon(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(slow(walk, episodes=300), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        await tree.executor.pause(uid, "a guest")
        tree.daemon.send_signal(signal.SIGKILL)
        await tree.gone()
    async with instance.serve() as tree:
        [run] = (await tree.executor.status(uid)).runs
        assert (run.state, run.paused) == ("queued", True)
        await tree.executor.continue_(uid)
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        assert done(events) == Counter(range(300))


async def test_a_run_that_never_goes_on_is_not_interrupted(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(slow(walk, resume="never"), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        with pytest.raises(UsageError, match="resume: never"):
            await tree.executor.pause(uid, hard=True)
        assert (await tree.executor.pause(uid)).changed
        await tree.executor.abort(uid)
        await tree.end(uid)


async def test_who_pauses_a_run_that_is_ending_is_told(instance, walk):
    """By `stop` it is slow to end: its agent sleeps."""
    async with instance.serve() as tree:
        run = walk(entry="user_code:Sleeps", episodes=20)
        uid = await tree.executor.submit(run, folder=instance.folder)
        await tree.until(uid, "phase.started")
        await tree.executor.abort(uid)
        with pytest.raises(TryAgain, match=rf"run {uid} is (finalizing|stopping)"):
            await tree.executor.pause(uid)
        (instance.folder / "awake").touch()
        await tree.end(uid)
