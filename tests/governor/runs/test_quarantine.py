from __future__ import annotations

import asyncio

import pytest

from governor.runs.quarantine import Quarantine


@pytest.fixture
async def told():
    """`quarantine, news = told`: the pids of the events that it posts."""
    news = asyncio.Queue()
    quarantine = Quarantine("slot-0", lambda event: news.put_nowait((event.run, event.pids)))
    yield quarantine, news
    await quarantine.aclose()


def hung():
    return asyncio.create_task(asyncio.Event().wait())


async def test_each_exit_is_reported_when_it_happens(told):
    quarantine, news = told
    first, second = asyncio.Event(), asyncio.Event()
    exits = {
        asyncio.create_task(first.wait()): frozenset({7}),
        asyncio.create_task(second.wait()): frozenset({8, 9}),
    }
    quarantine.begin("r1", (7, 8), exits)
    second.set()
    assert {*(await news.get())[1]} == {8, 9}
    assert news.empty()
    first.set()
    assert await news.get() == ("r1", (7,))


async def test_a_process_that_was_gone_before_is_reported_at_once(told):
    quarantine, news = told
    hanging = hung()
    quarantine.begin("r1", (7, 8), {hanging: frozenset({8})})
    assert news.get_nowait() == ("r1", (7,))
    assert news.empty()


async def test_after_closing_it_waits_for_no_process(told):
    quarantine, news = told
    hanging = hung()
    quarantine.begin("r1", (7,), {hanging: frozenset({7})})
    await quarantine.aclose()
    assert hanging.cancelled()
    assert news.empty()
