"""`Scheduler` against real Ray: its start and its stop, and what tasks are given meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from governor.errors import GovernorError
from governor.tasks import Scheduler, Task, TaskResult
from governor.tasks.driver import Driver
from tests.support.living import lives
from tests.support.tasks.scheduling import BASE, visitor, within

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


# -- what tasks are given --------------------------------------------------------------------------------------


async def test_what_tasks_were_given_is_deleted_when_they_have_ended(scheduler, gate):
    """Their retries too; in Ray's store, and here."""
    store = scheduler.submissions.driver.pickle_store

    def doubled(x, context):
        if context.attempt == 1:
            raise ValueError("not yet")
        return TaskResult(payload=bytes(x) * 2)

    for batch_id in (1, 2):
        tasks = [Task(lambda x, n=n: TaskResult(payload=bytes([n, *x])), {"x": {n}}) for n in range(200)]
        scheduler.schedule([*tasks, Task(doubled, {"x": (7,)})], batch_id)
        names = asyncio.create_task(scheduler.get_payload_results(batch_id))
        statuses, payloads = await within(30, names)
        assert all(status.ok for status in statuses)
        assert sorted(payloads) == sorted([*(bytes([n, n]) for n in range(200)), b"\7\7"])
    scheduler.schedule([visitor(gate, id=name) for name in "ab"], 3)
    scheduler.schedule([Task(lambda: None)], 4)
    await gate.visits(2)
    await scheduler.abort_batch(4)
    await scheduler.abort_batch(3)
    async with asyncio.timeout(20):
        while store._references or scheduler.submissions._tasks:
            await asyncio.gather(*scheduler.submissions._tasks)


async def test_a_large_batch_of_functions_and_arguments_waits_for_no_store(scheduler, monkeypatch):
    """The event loop is held by the pickling alone, and by no call into Ray."""
    store, here = scheduler.submissions.driver.pickle_store, threading.current_thread()
    threads = set()
    for name in ("store", "release"):
        called = getattr(store, name)

        def noted(*given, called=called, **more):
            threads.add(threading.current_thread())
            called(*given, **more)

        monkeypatch.setattr(store, name, noted)
    scheduler.schedule([Task(lambda n=n: None, {"x": {n}}, retries=0) for n in range(100)], 1)
    assert not store._references
    assert len(await within(20, scheduler.get_statuses(1))) == 100
    await within(20, asyncio.gather(*scheduler.submissions._tasks))
    assert threads
    assert here not in threads


async def test_what_cannot_be_stored_fails_with_the_reason(scheduler, monkeypatch):
    def full(*_, **__):
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(scheduler.submissions.driver.pickle_store, "store", full)
        scheduler.schedule([Task(lambda: 1, id="a"), Task("deeds:nothing", id="b", depends_on=["a"])], 1)
        statuses = {each.task_id: each for each in await within(5, scheduler.get_statuses(1))}
    assert "cannot be stored: OSError: no room" in statuses["a"].message
    assert "upstream_failed" in statuses["b"].message


# -- stop -----------------------------------------------------------------------------------------------------


async def test_stop_is_bounded_wakes_who_waits_and_keeps_results(harness, gate, monkeypatch):
    scheduler = Scheduler(BASE)
    with pytest.raises(RuntimeError, match="does not run"):
        scheduler.schedule([Task("deeds:nothing")], 1)
    opened, open_driver = [], Driver.open
    monkeypatch.setattr(Driver, "open", lambda *a, **k: opened.append(a) or open_driver(*a, **k))
    await asyncio.gather(scheduler.start(), scheduler.start())
    assert len(opened) == 1
    scheduler.schedule([Task(lambda: TaskResult(payload=b"kept"), id="done")], 1)
    await within(20, scheduler.wait_for(1))
    scheduler.schedule([visitor(gate, id="hung", args={"stubborn": True})], 1)
    visit = await gate.visit()
    visit.tell("hold the GIL")
    await visit.heard()
    folder = scheduler.submissions.driver.folder
    (at_work,) = scheduler.running_tasks(1)
    other = scheduler.runners[1 - at_work.runner_id]
    waits = [
        asyncio.create_task(waiting)
        for waiting in (
            scheduler.wait_for(1, timeout=600),
            scheduler.wait_all(),
            other.run_with_retry(visitor(gate, id="own"), 1, 0, 600.0),
        )
    ]
    await gate.visit()
    began = time.monotonic()
    await asyncio.gather(scheduler.stop(), scheduler.stop())
    assert time.monotonic() - began < 5
    assert not lives(visit.pid)
    assert not folder.exists()
    verdict, everything, own = await within(1, asyncio.gather(*waits, return_exceptions=True))
    assert verdict in ("all", "timeout")
    assert isinstance(everything, RuntimeError)
    assert isinstance(own, RuntimeError) or not own[0].ok
    statuses, payloads = await scheduler.drain_batch_payload_results(1)
    assert ([status.task_id for status in statuses], payloads) == (["done"], [b"kept"])
    assert not scheduler.has_step(1)
    assert (scheduler.get_all_state(), scheduler.explain(1)) == ({}, [])
    await within(20, scheduler.start())
    scheduler.schedule([Task("deeds:nothing")], 1)
    assert (await within(20, scheduler.get_statuses(1)))[0].ok
    await scheduler.stop()


async def test_what_does_not_end_in_stop_timeout_is_not_waited_for(harness, monkeypatch):
    scheduler = Scheduler(replace(BASE, runner_per_model=1, stop_timeout=0.1))
    await scheduler.start()
    driver, released = scheduler.submissions.driver, asyncio.Event()
    close = driver.engine._runners.close

    async def slow(idle):
        await released.wait()
        await close(idle)

    monkeypatch.setattr(driver.engine._runners, "close", slow)
    await within(2, scheduler.stop())
    released.set()
    await within(20, driver._closing)
    assert not driver.folder.exists()


async def test_a_runner_that_waits_is_woken_by_a_stop_that_is_not_done_in_time(harness, gate):
    scheduler = Scheduler(replace(BASE, runner_per_model=1, stop_timeout=0.1))
    await scheduler.start()
    driver, released = scheduler.submissions.driver, asyncio.Event()
    driver._stack.push_async_callback(released.wait)
    work = asyncio.create_task(scheduler.runners[0].run_with_retry(visitor(gate), 1, 0, 600.0))
    await gate.visit()
    await within(2, scheduler.stop())
    with pytest.raises(RuntimeError, match="was stopped"):
        await within(2, work)
    released.set()
    await within(20, driver._closing)


async def test_stop_ends_a_start(harness, monkeypatch):
    scheduler, opening, ended = Scheduler(BASE), asyncio.Event(), asyncio.Event()

    async def hang(_):
        opening.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr("governor.tasks.engine.Engine.start", hang)
    starting = asyncio.create_task(scheduler.start())
    await within(20, opening.wait())
    await within(10, scheduler.stop())
    assert ended.is_set()
    with pytest.raises(GovernorError, match="stopped before it had started"):
        await within(1, starting)
    assert not scheduler.running


async def test_a_start_without_a_single_runner_is_an_error(harness, monkeypatch):
    def create(*_):
        raise RuntimeError("no licence")

    monkeypatch.setattr("governor.tasks.runners.pool.Runners._create", create)
    scheduler = Scheduler(replace(BASE, runner_per_model=1))
    with pytest.raises(GovernorError, match="no runner can be started"):
        await within(20, scheduler.start())
    await within(5, scheduler.stop())
    assert not scheduler.running
