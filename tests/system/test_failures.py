"""Why a run failed, during the run and after it, also across a daemon that is killed."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

pytestmark = pytest.mark.system


async def test_causes_and_tracebacks_are_there_during_the_run_and_after_a_kill(instance, walk):
    run = walk(entry="user_code:Stumbler")
    run["phases"][0]["on_failure"] = "continue"
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run, folder=instance.folder)
        async with asyncio.timeout(40):
            while not (page := await tree.executor.failures(uid, limit=2)).more:
                await tree.until(uid, "episode.ended")
        in_work = (await tree.executor.status(uid)).runs[0].seconds
        result = await tree.executor.result(uid, so_far=True)
        assert result.seconds >= round(in_work, 3), "until now, not until the last change of its state"
        [so_far] = result.phases
        assert (so_far.end, so_far.failed > 2) == ("in work", True)
        os.kill(tree.daemon.pid, signal.SIGKILL)
        await tree.gone()
    async with instance.serve() as tree:
        _, result = await tree.end(uid)
        pages = await tree.executor.failures(uid, limit=1000)
    assert page.failures[0].reason.startswith("agent.act: ValueError: stumbled over ")
    [text] = [page.tracebacks[page.failures[0].traceback]]
    assert "in act\n" in text
    assert "ValueError: stumbled over " in text
    [phase] = result.phases
    assert phase.failed == phase.episodes["failed"] == len(pages.failures)
    assert [group.number for group in phase.failures] == [phase.failed]
    assert result.reason.startswith(
        f"1 of 1 phases had failures; first: phase train: {phase.failed} ended badly, first episode "
    )
