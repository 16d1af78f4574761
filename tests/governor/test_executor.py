"""The executor before a daemon that fails, is silent, or has no room: each its own error and exit code."""

from __future__ import annotations

import asyncio
import socket

import numpy as np
import pytest

from governor.errors import (
    ExitCode,
    GovernorError,
    NoAnswer,
    NotPermitted,
    TryAgain,
    Unreachable,
    UsageError,
)
from governor.executor import Executor
from governor.messages import (
    Done,
    Refused,
    Submitted,
    decode_request,
    encode,
)
from governor.messages.chunking import slices
from tests.support.run_results import run_result
from transport import frames
from transport.access import Access
from transport.broker import Broker, BrokerSettings

RUN = {
    "name": "r",
    "phases": [{"name": "p", "tasks": [{"id": "t", "call": "m:f", "args": {"x": "y" * 2000}}]}],
}


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
