"""A task phase whose governor does not take reports for a while, and one that a user has paused."""

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
        if phase._is_full and not harness.engine._core.batches[phase.phase].at_work:
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


async def test_no_task_begins_while_the_phase_is_paused_and_what_follows_ends_with_it(harness, task):
    phase, link = harness.phase(task("many", "nothing", repeat=5_000), task("after", "nothing", "many"))
    begun, idle, run_ended = asyncio.Event(), asyncio.Event(), phase.run_ended

    def ended(record, payload):
        run_ended(record, payload)
        begun.set()
        if not harness.engine._core.batches[phase.phase].at_work:
            idle.set()

    phase.run_ended = ended
    phase.begin()
    running = asyncio.create_task(phase.run())
    async with asyncio.timeout(30):
        await begun.wait()
        harness.engine.pause("user", paused=True)
        idle.clear()
        if harness.engine._core.batches[phase.phase].at_work:
            await idle.wait()
        left = harness.engine._core.ready.waiting(())
        assert left > 500
        harness.engine.pause("user", paused=False)
        await running
    assert len([event for event in link.events if isinstance(event, TaskEnded)]) == 5_001


async def test_a_pause_has_several_reasons_and_a_phase_takes_back_its_own(harness, task):
    phase, _ = harness.phase(task("many", "nothing", repeat=2_000), task("after", "nothing", "many"))
    phase.begin()
    phase._set_full(is_full=True)
    harness.engine.pause("user", paused=True)
    phase.stop("enough")
    harness.engine.pause("user", paused=False)
    assert harness.engine._core.is_paused
    phase._set_full(is_full=False)
    async with asyncio.timeout(30):
        await phase.run()
    result = await harness.run(task("next", "nothing"))
    assert result["next"].outcome == "succeeded"
