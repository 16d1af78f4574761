"""The executor across daemons: a watch continues where it was interrupted, a submit with a lost answer gives one run."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

import governor
from governor.errors import NoSuchRun, UsageError
from governor.executor import Executor

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    "end", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL], ids=["stopped", "killed"]
)
async def test_a_watch_continues_after_a_daemon_restart(instance, walk, end):
    seen = []

    async def watch(executor, uid):
        watching = executor.watch(uid)
        seen.extend([event.seq async for event in watching])
        return watching.end

    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        async with Executor(tree.executor.endpoint, patience=60) as follower:
            watching = asyncio.create_task(watch(follower, uid))
            waiting = asyncio.create_task(follower.wait(uid))
            await tree.until(uid, "episode.ended")
            os.kill(tree.daemon.pid, end)
            await tree.gone()
            async with instance.serve() as other:
                events, _ = await other.end(uid)
                async with asyncio.timeout(60):
                    last = await watching
                    result = await waiting
    assert seen == [event.seq for event in events]
    assert last.outcome == "finished"
    assert (result.uid, result.outcome) == (uid, "finished")
    assert result.phases["train"].episodes == {"terminated": 600}


async def test_a_script_submits_and_waits_without_an_event_loop_of_its_own(instance, walk):
    async with instance.serve() as tree:
        broker = tree.executor.endpoint
        uid = governor.submit(walk(episodes=5), "key", folder=instance.folder, broker=broker)
        result = governor.wait(uid[:6], broker=broker)
        assert governor.submit(walk(episodes=5), "key", folder=instance.folder, broker=broker) == uid
        assert (result.uid, result.outcome, result.episodes().num_rows) == (uid, "finished", 5)
        with pytest.raises(NoSuchRun):
            governor.wait("absent", broker=broker)
        with pytest.raises(UsageError, match="SIGTERM"):
            await tree.executor.stop()


@pytest.mark.long
async def test_a_submit_across_a_restart_is_one_run(instance, walk):
    """Submits repeatedly with the same key while the daemon is killed."""
    run = walk(episodes=5)
    async with instance.serve() as tree, Executor(tree.executor.endpoint, patience=60) as client:
        submits = [
            asyncio.create_task(client.submit(run, key="monday", folder=instance.folder)) for _ in range(20)
        ]
        await asyncio.wait(submits, return_when=asyncio.FIRST_COMPLETED)
        os.kill(tree.daemon.pid, signal.SIGKILL)
        await tree.gone()
        async with instance.serve() as other:
            async with asyncio.timeout(60):
                uids = await asyncio.gather(*submits)
            [listed] = (await other.executor.list()).runs
            assert set(uids) == {listed.uid}
            _, result = await other.end(listed.uid)
    assert result.outcome == "finished"
