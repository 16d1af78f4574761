"""The executor before a daemon that fails, is silent, or has no room: each its own error and exit code."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest

from governor.errors import (
    ExitCode,
    GoingDown,
    GovernorError,
    NoAnswer,
    NotPermitted,
    TryAgain,
    Unreachable,
    UsageError,
)
from governor.executor import Executor
from governor.executor import following as module
from governor.messages import (
    SERVICE,
    Done,
    Refused,
    RunEvent,
    RunStatus,
    StatusReport,
    Submitted,
    Watch,
    WatchEnd,
    decode_request,
    encode,
)
from governor.messages.chunking import slices
from tests.support.run_results import run_result
from transport import frames
from transport.access import Access
from transport.broker import Broker, BrokerSettings
from transport.broker_core import BrokerLimits
from transport.worker import Worker

RUN = {
    "name": "r",
    "phases": [{"name": "p", "tasks": [{"id": "t", "call": "m:f", "args": {"x": "y" * 2000}}]}],
}


@pytest.fixture
async def line():
    """`open(**limits)` gives an executor, and its broker; `serve(handler)` is the daemon behind it."""
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ex-", dir="/tmp"))
        client, worker = f"ipc://{folder}/c", f"ipc://{folder}/w"

        def broker(**limits):
            return Broker(
                BrokerSettings(client_endpoint=client, worker_endpoint=worker, limits=BrokerLimits(**limits))
            )

        async def open_one(
            *, seconds=0.5, patience=0.5, awaits_restart=True, service=SERVICE, has_broker=True, **limits
        ):
            if has_broker:
                await stack.enter_async_context(broker(**limits))
            made = Executor(
                client, timeout=seconds, patience=patience, awaits_restart=awaits_restart, service=service
            )
            return await stack.enter_async_context(made)

        def serve(handler, service=SERVICE, **options):
            return Worker(worker, service, handler, **options)

        yield SimpleNamespace(open=open_one, serve=serve, broker=broker)


async def fail(_request):
    raise LookupError("a bug")


async def never(_request):
    await asyncio.Event().wait()


async def test_a_daemon_that_fails_at_a_request_is_not_called_unreachable(line):
    executor = await line.open()
    async with line.serve(fail):
        with pytest.raises(GovernorError, match="LookupError: a bug") as caught:
            await executor.status()
        assert caught.value.exit_code == ExitCode.INTERNAL
        async with asyncio.timeout(5):  # not the patience that it has with a daemon that starts again
            with pytest.raises(GovernorError, match="LookupError: a bug"):
                await anext(executor.watch("abc"))


async def test_no_answer_is_a_deadline_and_no_broker_is_unreachable(line):
    executor = await line.open(service_wait=0.1)
    with pytest.raises(Unreachable):
        await executor.status()
    async with line.serve(never):
        with pytest.raises(NoAnswer) as caught:
            await executor.status()
    assert caught.value.exit_code == ExitCode.DEADLINE


async def test_a_broker_without_room_means_try_again(line):
    executor = await line.open(queue=1)
    async with line.serve(never) as worker:
        await worker.registered()
        waiting = [asyncio.create_task(executor.status()) for _ in range(2)]
        with pytest.raises(TryAgain, match="no room") as caught:
            await asyncio.gather(*waiting, executor.status())
        assert caught.value.exit_code == ExitCode.TRY_AGAIN
        await asyncio.wait(waiting)
        assert {type(task.exception()) for task in waiting} == {NoAnswer}


def going_down(*, until):
    """A daemon that refuses so many requests, as one does that goes down, before the next one takes them."""
    asked = []

    async def answer(request):
        asked.append(decode_request(request.body[0]))
        if len(asked) <= until:
            return [encode(Refused(code="going_down", message="it is going down", exit_code=75))]
        return [encode(Submitted(uid="abc"))]

    return asked, answer


async def test_a_daemon_that_goes_down_is_waited_for_as_one_that_has_gone(line):
    executor = await line.open(patience=5.0)
    asked, answer = going_down(until=3)
    async with line.serve(answer):
        assert await executor.submit(RUN) == "abc"
    assert len({request.key for request in asked}) == 1
    assert len(asked) == 4


@pytest.mark.parametrize(("patience", "awaits_restart"), [(0.3, True), (30.0, False)])
async def test_but_not_for_ever_and_not_where_no_other_one_comes(line, patience, awaits_restart):
    executor = await line.open(patience=patience, awaits_restart=awaits_restart)
    _, answer = going_down(until=1000)
    async with line.serve(answer), asyncio.timeout(5):
        with pytest.raises(TryAgain, match="it is going down") as caught:
            await executor.submit(RUN)
    assert (caught.value.code, caught.value.exit_code) == ("going_down", ExitCode.TRY_AGAIN)


@pytest.mark.parametrize("successor", [True, False])
async def test_a_daemon_that_has_refused_and_then_gone_is_not_called_silent(line, successor):
    executor = await line.open(patience=2.0)  # and half a second for an answer
    asked, refuse = going_down(until=1000)
    async with line.serve(refuse) as worker:
        submitting = asyncio.create_task(executor.submit(RUN))
        await worker.registered()
        while not asked:
            await asyncio.wait({submitting}, timeout=0.01)
    done, _ = await asyncio.wait({submitting}, timeout=1.0)
    assert not done
    if successor:
        async with line.serve(going_down(until=0)[1]):
            assert await submitting == "abc"
    else:
        with pytest.raises(TryAgain, match="it is going down"):
            await submitting


async def test_a_daemon_that_is_killed_is_waited_for_longer_than_for_an_answer(line, monkeypatch):
    received, tries = asyncio.Event(), []

    async def never_answered(_request):
        received.set()
        await never(_request)

    async with line.broker(), line.serve(never_answered):
        executor = await line.open(seconds=5.0, patience=60.0, has_broker=False)
        request = executor._request
        monkeypatch.setattr(executor, "_request", lambda *given: tries.append(given) or request(*given))
        submitting = asyncio.create_task(executor.submit(RUN))
        await received.wait()
    while len(tries) < 2 and not submitting.done():
        await asyncio.wait({submitting}, timeout=0.01)
    async with line.broker(), line.serve(going_down(until=0)[1]):
        assert await submitting == "abc"


async def test_a_request_that_is_too_large_is_the_callers(line, monkeypatch):
    executor = await line.open()
    monkeypatch.setattr(frames, "BODY_LIMIT", 1000)
    with pytest.raises(UsageError, match="larger than a broker takes"):
        await executor.submit(RUN)


@pytest.mark.parametrize(
    ("name", "why"), [(2**64, "does not fit 64 bits"), ("caf\udce9", "is no text in Unicode")]
)
async def test_what_no_message_carries_is_the_callers(line, name, why):
    executor = await line.open()
    with pytest.raises(UsageError, match=why):
        await executor.abort("abc", reason=name)
    with pytest.raises(UsageError, match=why):
        await anext(executor.watch(name))


async def test_values_of_numpy_are_sent_as_pythons_and_other_objects_are_refused(line):
    executor = await line.open()
    asked, answer = going_down(until=0)
    async with line.serve(answer):
        await executor.submit(RUN, params={"a": np.float64(0.5), "b": np.arange(2)})
    assert asked[0].params == {"a": 0.5, "b": [0, 1]}
    with pytest.raises(UsageError, match=r"a value of a wrong type: .* type object"):
        await executor.submit(RUN, params={"a": object()})


async def test_one_that_is_closed_says_so_at_once(line):
    executor = await line.open(patience=60.0)
    await executor.__aexit__()
    async with asyncio.timeout(10):
        with pytest.raises(UsageError, match="this Executor was closed"):
            await executor.status()
        with pytest.raises(UsageError, match="this Executor was closed"):
            await anext(executor.watch("abc"))


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


async def test_a_daemon_that_is_not_there_is_told_after_the_patience_whatever_a_call_may_take():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        endpoint = f"tcp://127.0.0.1:{held.getsockname()[1]}"
        async with Executor(endpoint, timeout=60, patience=0.1) as executor, asyncio.timeout(40):
            for call in (executor.status(), executor.prune(1), anext(executor.watch("abc"))):
                with pytest.raises(Unreachable, match="nobody listens"):
                    await call


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1.0}])
def test_a_deadline_is_a_positive_number(options):
    with pytest.raises(UsageError, match="timeout is the deadline of each call"):
        Executor("ipc:///nowhere", **options)


async def test_an_empty_key_is_none(line):
    executor = await line.open()
    with pytest.raises(UsageError, match="key is a text of 1 to 256 characters"):
        await executor.submit(RUN, key="")


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


async def test_a_request_waits_for_the_next_daemon(line):
    executor = await line.open(patience=20, service_wait=0.1)
    asked = []

    async def serve(request):
        asked.append(decode_request(request.body[0]))
        return [encode(Submitted(uid="abc"))]

    submitting = asyncio.create_task(executor.submit(RUN))
    async with line.serve(never) as worker:
        await worker.registered()
    async with line.serve(serve), asyncio.timeout(20):
        assert await submitting == "abc"
    [submit] = asked
    assert submit.key


async def test_a_result_that_is_more_than_a_message_takes_comes_in_parts(line):
    large = run_result("abc", folder="f" * (frames.BODY_LIMIT + 1))
    executor = await line.open()
    executor.timeout = 10

    async def serve(request):
        for part in slices(encode(large)):
            await request.partial(part)
        return [encode(Done())]

    async with line.serve(serve):
        assert await executor.result("abc") == large


async def test_a_socket_that_does_not_lead_to_the_daemon_is_not_permitted_at_once(tmp_path):
    client, worker = f"ipc://{tmp_path}/c", f"ipc://{tmp_path}/w"
    broker = Broker(
        BrokerSettings(client_endpoint=client, worker_endpoint=worker, access=Access(public=frozenset()))
    )
    async with broker, Executor(client, timeout=60.0) as executor, asyncio.timeout(20):
        with pytest.raises(
            NotPermitted, match=r"not reached through ipc://.*governor: this service"
        ) as caught:
            await executor.status()
        assert caught.value.exit_code == ExitCode.NOT_PERMITTED
        with pytest.raises(NotPermitted):
            await anext(executor.watch("r1"))
