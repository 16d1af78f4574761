"""An executor that watches a run: over daemons that come and go, and waits that are cancelled."""

from __future__ import annotations

import asyncio

import pytest

from governor.errors import (
    GoingDown,
    UsageError,
)
from governor.executor import following as module
from governor.messages import (
    RunEvent,
    RunStatus,
    StatusReport,
    Watch,
    WatchEnd,
    decode_request,
    encode,
)


async def test_closing_ends_a_watch_that_waits(line):
    executor = await line.open(patience=float("inf"))
    begins = asyncio.Event()

    async def silent(_request):
        begins.set()
        await asyncio.Event().wait()

    async with line.serve(silent), asyncio.timeout(20):
        waiting = asyncio.create_task(anext(executor.watch("abc")))
        await begins.wait()
        await executor.__aexit__()
        with pytest.raises(UsageError, match="this Executor was closed"):
            await waiting


async def test_a_cancelled_wait_for_an_event_loses_none(line):
    executor = await line.open(patience=20)
    goes_on = asyncio.Event()

    async def watched(request):
        after = decode_request(request.body[0]).after
        if after == 0:
            await request.partial(encode(RunEvent(uid="abc", seq=1, at=0.0, kind="k")))
        await goes_on.wait()
        await request.partial(encode(RunEvent(uid="abc", seq=2, at=0.0, kind="k")))
        return [encode(WatchEnd(outcome="finished"))]

    async with line.serve(watched, credit=8), asyncio.timeout(20):
        events = executor.watch("abc")
        assert (await anext(events)).seq == 1
        for _ in range(2):
            waiting = asyncio.create_task(anext(events))
            await asyncio.sleep(0)  # it has begun
            with pytest.raises(UsageError, match="another task waits"):
                await anext(events)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        goes_on.set()
        assert [event.seq async for event in events] == [2]
    assert events.end.outcome == "finished"


async def test_a_watch_that_comes_back_asks_for_the_very_run_that_it_had_found(line, monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.2)
    executor = await line.open()
    asked = []

    async def watched(request):
        asked.append(decode_request(request.body[0]))
        if asked[-1].after == 3:
            await request.partial(encode(RunEvent(uid="abc", seq=7, at=0.0, kind="k")))
            await asyncio.Event().wait()
        return [encode(WatchEnd(outcome="finished"))]

    async with line.serve(watched, credit=64), asyncio.timeout(10):
        events = [event async for event in executor.watch("ab", after=3)]
    assert [event.seq for event in events] == [7]
    # on a busy machine it asks again for what is late
    assert list(dict.fromkeys((request.uid, request.after) for request in asked)) == [("ab", 3), ("abc", 7)]


async def test_the_end_of_a_run_does_not_end_the_watch_of_another(line, monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.2)
    executor = await line.open()
    asked = []

    async def watched(request):
        after = decode_request(request.body[0]).after
        asked.append(after)
        if after == 1:
            return [encode(WatchEnd(outcome="finished"))]
        await request.partial(encode(RunEvent(uid="cut", seq=after + 2, at=0.0, kind="k")))
        if after == 0:
            await asyncio.Event().wait()
        return [encode(WatchEnd(outcome="failed"))]

    async with line.serve(watched, credit=64), asyncio.timeout(10):
        cut, whole = executor.watch("cut"), executor.watch("whole", after=1)
        first = await anext(cut)
        assert [event async for event in whole] == []
        rest = [event async for event in cut]
    assert [event.seq for event in [first, *rest]] == [2, 4]
    assert list(dict.fromkeys(asked)) == [0, 1, 2]  # on a busy machine it asks again for what is late
    assert (cut.end.outcome, whole.end.outcome) == ("failed", "finished")


async def test_a_watch_continues_with_the_next_daemon(line):
    executor = await line.open(patience=20)
    asked = []

    async def stopping(request):
        asked.append(decode_request(request.body[0]).after)
        await request.partial(encode(RunEvent(uid="abc", seq=1, at=0.0, kind="k")))
        return [encode(WatchEnd(outcome="interrupted"))]

    async def started(request):
        asked.append(decode_request(request.body[0]).after)
        await request.partial(encode(RunEvent(uid="abc", seq=2, at=0.0, kind="k")))
        return [encode(WatchEnd(outcome="finished"))]

    async with asyncio.timeout(20):
        events = executor.watch("abc")
        async with line.serve(stopping, credit=2):
            first = await anext(events)
        async with line.serve(started, credit=2):
            rest = [event async for event in events]
    assert [event.seq for event in [first, *rest]] == [1, 2]
    assert asked == [0, 1]
    assert events.end.outcome == "finished"


@pytest.mark.parametrize(
    ("service", "then"),
    [("governor", "goes on when it is started again"), ("mine", "has ended with it")],
    ids=["daemon", "RunGovernor"],
)
async def test_waiting_for_a_run_of_a_daemon_that_goes_down_ends(line, service, then):
    executor = await line.open(awaits_restart=False, service=service)

    async def stopping(request):
        if isinstance(decode_request(request.body[0]), Watch):
            return [encode(WatchEnd(outcome="interrupted"))]
        run = RunStatus(
            uid="abc", name="n", state="running", outcome=None, reason="", waits_for="", submitted_at=0
        )
        head = {"pid": 1, "version": "0", "endpoint": "", "uptime": 0, "slots": 1, "state": "stopping"}
        return [encode(StatusReport(runs=(run,), **head))]

    async with line.serve(stopping, credit=2, service=service), asyncio.timeout(20):
        with pytest.raises(GoingDown, match=f"run abc {then}"):
            await executor.wait("ab")


@pytest.mark.parametrize("awaits_restart", [True, False])
async def test_a_daemon_that_stays_away_interrupts_a_watch(line, awaits_restart):
    executor = await line.open(patience=0.5 if awaits_restart else 60, awaits_restart=awaits_restart)

    async def stopping(_request):
        return [encode(WatchEnd(outcome="interrupted"))]

    async with line.serve(stopping, credit=2), asyncio.timeout(20):
        events = executor.watch("abc")
        assert [event async for event in events] == []
    assert events.end.outcome == "interrupted"
