"""A task phase whose governor does not take reports for a while."""

import asyncio

import pytest

from governor.messages import TaskEnded
from governor.tasks.phases import task_graph
from governor.tasks.scheduling.bundles import LARGEST

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


async def test_no_task_begins_while_too_many_ends_wait_for_the_governor(harness, task, monkeypatch):
    monkeypatch.setattr(task_graph, "REPORTS_WAITING", 64)
    phase, link = harness.phase(task("many", "nothing", repeat=5_000))
    back, idle = asyncio.Event(), asyncio.Event()
    report_all, run_ended = link.report_all, phase.run_ended

    async def once_back(events):
        await back.wait()
        return await report_all(events)

    def ended(record, payload):
        run_ended(record, payload)
        if phase._paused and not harness.engine._core.batches[phase.phase].at_work:
            idle.set()

    link.report_all, phase.run_ended = once_back, ended
    phase.begin()
    running = asyncio.create_task(phase.run())
    async with asyncio.timeout(30):
        await idle.wait()
        assert harness.engine._core.ready.waiting(()) > 1_000
        assert len(phase._reports) < 64 + 4 * LARGEST
        back.set()
        await running
    assert len([event for event in link.events if isinstance(event, TaskEnded)]) == 5_000
