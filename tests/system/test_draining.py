"""A daemon that begins no further run, over its death and its orderly end."""

from __future__ import annotations

import pytest

from governor.errors import ExitCode

pytestmark = pytest.mark.system


async def test_a_drained_daemon_begins_no_run_until_it_is_undrained_also_after_its_death(instance, walk):
    async with instance.serve("--slots", "1") as tree:
        first = await tree.executor.submit(walk(entry="user_code:Slow", episodes=300), folder=instance.folder)
        await tree.until(first, "episode.ended")
        second = await tree.executor.submit(walk(episodes=3), folder=instance.folder)
        assert (await tree.executor.drain("a new kernel")).changed
        tree.daemon.kill()
        await tree.gone()
    async with instance.serve("--slots", "1") as tree:
        report = await tree.executor.status()
        assert report.state == "drained"
        assert {run.uid: run.state for run in report.runs} == {first: "queued", second: "queued"}
        assert {run.waits_for for run in report.runs} == {
            "`governor undrain`, the daemon is drained: a new kernel"
        }
        assert (await tree.executor.undrain()).changed
        for uid in (first, second):
            assert (await tree.end(uid))[1].outcome == "finished"


async def test_a_shutdown_when_idle_lets_the_run_in_work_end_and_leaves_the_others_queued(instance, walk):
    async with instance.serve("--slots", "1") as tree:
        first = await tree.executor.submit(walk(entry="user_code:Slow", episodes=100), folder=instance.folder)
        await tree.until(first, "episode.ended")
        second = await tree.executor.submit(walk(episodes=3), folder=instance.folder)
        assert (await tree.executor.shutdown("tonight", when_idle=True)).changed
        assert await tree.gone() == ExitCode.DONE
    async with instance.serve("--slots", "1") as tree:
        result = await tree.executor.result(first)
        assert (result.outcome, sum(result.phases[0].episodes.values())) == ("finished", 100)
        assert (await tree.executor.status()).state == "serving"
        assert (await tree.end(second))[1].outcome == "finished"
        assert (await tree.executor.shutdown()).changed
        assert await tree.gone() == ExitCode.DONE
