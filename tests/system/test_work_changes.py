"""Single episodes and tasks of a run at work are cancelled, or done again, while the others go on; also over the death of the daemon."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest

from governor.errors import AlreadyEnded, TryAgain, UsageError

pytestmark = pytest.mark.system

EPISODES = 40


def long_episodes(walk, transport):
    """Each takes about a second."""
    made = walk(entry="user_code:Naps", episodes=EPISODES)
    made["conductors"]["agents"]["walker"]["params"] = {"seconds": 0.1}
    made["phases"][0]["simulate"] |= {"transport": transport, "workers": 2}
    return made


def ended(events):
    return {e.data["episode"]["index"]: e.data["episode"] for e in events if e.kind == "episode.ended"}


@pytest.mark.parametrize("transport", ["conductors", "in_process"])
async def test_an_episode_is_cancelled_at_work_and_before_it_begins_and_another_is_played_again(
    instance, walk, transport
):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(long_episodes(walk, transport), folder=instance.folder)
        first = (await tree.until(uid, "episode.ended")).data["episode"]["index"]
        executor = tree.executor
        assert not (await executor.cancel(uid, episode=first)).changed
        assert not (await executor.requeue(uid, episode=first)).changed
        assert (await executor.cancel(uid, episode=EPISODES - 1, dry_run=True)).changed
        assert (await executor.cancel(uid, episode=EPISODES - 1, reason="too long")).changed
        assert not (await executor.cancel(uid, episode=EPISODES - 1)).changed
        for wrong in ({"episode": EPISODES}, {"task": "t"}, {}, {"episode": 1, "task": "t"}):
            with pytest.raises(UsageError):
                await executor.cancel(uid, **wrong)
        with pytest.raises(TryAgain, match="phase 'later' is not at work, but 'train'"):
            await executor.cancel(uid, episode=3, phase="later")
        again = max(ended([e async for e in executor.watch(uid, follow=False)])) + 2
        assert (await executor.requeue(uid, episode=again, reason="once more")).changed
        assert (await executor.cancel(uid, episode=again + 4)).changed
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        episodes = ended(events)
        assert sorted(episodes) == list(range(EPISODES))
        assert Counter(each["outcome"] for each in episodes.values())["cancelled"] == 2
        assert episodes[EPISODES - 1]["reason"] == "too long"
        assert (episodes[EPISODES - 1]["steps"], episodes[again + 4]["outcome"]) == (0, "cancelled")
        assert episodes[again]["outcome"] in {"terminated", "truncated"}
        attempts = [e.data for e in events if e.kind == "episode.attempt_ended"]
        assert [(each["index"], each["outcome"], each["reason"]) for each in attempts] == [
            (again, "cancelled", "once more")
        ]
        asked = [e.data for e in events if e.kind == "run.work_change_requested"]
        assert [each["change"] for each in asked] == ["cancel", "requeue", "cancel"]
        assert all(each["by"]["pid"] for each in asked)
        with pytest.raises(AlreadyEnded):
            await executor.cancel(uid, episode=1)


async def test_tasks_are_cancelled_and_done_again_also_over_the_death_of_the_daemon(instance):
    nap = {"call": "user_code:nap", "args": {"seconds": 0.5}}
    tasks = [
        {"id": "hangs", "call": "user_code:nap", "args": {"seconds": 600}},
        {"id": "nap", **nap, "repeat": 6},
        {"id": "never", **nap, "depends_on": ["nap"]},
        {"id": "after", **nap, "depends_on": ["nap"]},
        {"id": "of_hangs", **nap, "depends_on": ["hangs"]},
    ]
    made = {"name": "naps", "phases": [{"name": "naps", "tasks": tasks, "grace": "1s"}]}
    async with instance.serve() as tree:
        uid = await tree.executor.submit(made, folder=instance.folder)
        await tree.until(uid, "task.started", task="hangs")
        assert (await tree.executor.requeue(uid, task="hangs", reason="a bad node")).changed
        await tree.until(uid, "task.attempt_ended", task="hangs")
        await tree.until(uid, "task.started", task="hangs", attempt=2)
        with pytest.raises(UsageError, match="did you mean 'never'"):
            await tree.executor.cancel(uid, task="nevr")
        assert (await tree.executor.cancel(uid, task="never", reason="not today")).changed
        last = [e.seq async for e in tree.executor.watch(uid, follow=False)][-1]
        tree.daemon.kill()
        await tree.gone()
    async with instance.serve() as tree:
        async with asyncio.timeout(40), contextlib.aclosing(tree.executor.watch(uid, after=last)) as events:
            await anext(e async for e in events if e.kind == "task.started" and e.data["task"] == "hangs")
        assert not (await tree.executor.cancel(uid, task="never")).changed
        assert (await tree.executor.cancel(uid, task="hangs", reason="enough")).changed
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        records = {
            (e.data["record"]["task"], e.data["record"]["run"]): e.data["record"]
            for e in events
            if e.kind == "task.ended"
        }
        assert len(records) == 10
        outcomes = {name: record["outcome"] for (name, _), record in records.items()}
        assert outcomes == {
            "hangs": "cancelled",
            "nap": "succeeded",
            "never": "cancelled",
            "after": "succeeded",
            "of_hangs": "upstream_failed",
        }
        assert (records["never", 0]["error"], records["hangs", 0]["error"]) == ("not today", "enough")


async def test_one_run_of_a_task_is_cancelled_or_done_again(instance):
    tasks = [
        {"id": "read", "call": "user_code:where", "repeat": 2},
        {"id": "fit", "call": "user_code:nap", "args": {"seconds": 600}, "repeat": 3},
        {"id": "best", "call": "user_code:nap", "args": {"seconds": 0}, "depends_on": ["fit"]},
    ]
    made = {"name": "fits", "phases": [{"name": "fits", "tasks": tasks, "grace": "1s"}]}
    async with instance.serve() as tree:
        uid = await tree.executor.submit(made, folder=instance.folder)
        for run in (0, 1):
            await tree.until(uid, "task.started", task="fit", run=run)
        with pytest.raises(UsageError, match="task 'fit' has 3 runs, numbered from 0: none is 3"):
            await tree.executor.cancel(uid, task="fit[3]")
        assert not (await tree.executor.cancel(uid, task="read[1]")).changed
        assert not (await tree.executor.requeue(uid, task="read[0]")).changed
        assert (await tree.executor.cancel(uid, task="fit[2]", reason="two are enough")).changed
        assert not (await tree.executor.cancel(uid, task="fit[2]")).changed
        assert (await tree.executor.requeue(uid, task="fit[0]", reason="a bad node")).changed
        ended = await tree.until(uid, "task.attempt_ended", task="fit")
        assert (ended.data["run"], ended.data["outcome"]) == (0, "cancelled")
        await tree.until(uid, "task.started", task="fit", run=0, attempt=2)
        last = [e.seq async for e in tree.executor.watch(uid, follow=False)][-1]
        tree.daemon.kill()
        await tree.gone()
    async with instance.serve() as tree:
        async with asyncio.timeout(40), contextlib.aclosing(tree.executor.watch(uid, after=last)) as events:
            await anext(e async for e in events if e.kind == "task.started")
        assert not (await tree.executor.cancel(uid, task="fit[2]")).changed
        assert (await tree.executor.cancel(uid, task="fit[0]", reason="enough of 0")).changed
        assert (await tree.executor.cancel(uid, task="fit", reason="enough of 1")).changed
        assert not (await tree.executor.cancel(uid, task="fit[1]")).changed
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        records = [e.data["record"] for e in events if e.kind == "task.ended"]
        assert {(each["task"], each["run"]): (each["outcome"], each["error"]) for each in records} == {
            **{("fit", run): ("cancelled", f"enough of {run}") for run in range(2)},
            **{("read", run): ("succeeded", "") for run in range(2)},
            ("fit", 2): ("cancelled", "two are enough"),
            ("best", 0): ("upstream_failed", 'task "fit" did not succeed'),
        }
