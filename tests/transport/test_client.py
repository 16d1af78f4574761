from __future__ import annotations

import asyncio
import math
import time

import pytest

from tests.transport.conftest_peers import FAST, echo, process, run_broker, until
from transport.broker import BrokerSettings
from transport.errors import (
    BadEndpoint,
    BrokerUnreachable,
    ClientClosed,
    ConnectionLost,
    DeadlineExceeded,
    MalformedFrames,
    PartialsLost,
    RemoteError,
    ServiceNotFound,
    TooLarge,
    TransportError,
    WorkerLost,
)
from transport.worker import Failures


async def hang(request):
    await asyncio.Event().wait()


async def read_all(stream, bodies=None):
    """Read a stream to its end; what was read before an error is in `bodies`."""
    bodies = [] if bodies is None else bodies
    async for part in stream:
        bodies.append(part.body)
    return bodies


async def test_no_broker_listens(world):
    async with world.client() as client:
        begun = time.monotonic()
        with pytest.raises(BrokerUnreachable, match=r"nobody listens at ipc:.*not sent"):
            await client.request("echo", b"x", timeout=0.3)
        assert 0.29 < time.monotonic() - begun < 3
        with pytest.raises(BrokerUnreachable):
            await read_all(client.stream("echo", b"x", idle_timeout=0.1))


async def test_a_request_may_have_to_be_sent_sooner_than_it_is_to_be_answered(world):
    async with world.client() as client:
        begun = time.monotonic()
        with pytest.raises(BrokerUnreachable, match=r"not sent within 0\.2 s"):
            await client.request("echo", b"x", timeout=60, send_within=0.2)
        with pytest.raises(BrokerUnreachable, match=r"not sent within 0\.1 s"):
            await read_all(client.stream("echo", b"x", idle_timeout=60, send_within=0.1))
        assert time.monotonic() - begun < 30
    begins, goes_on = asyncio.Event(), asyncio.Event()

    async def late(request):
        begins.set()
        await goes_on.wait()
        return request.body

    async with world.broker(), world.client() as client, world.worker("late", late):
        asked = asyncio.create_task(client.request("late", b"x", timeout=60, send_within=5))
        await begins.wait()
        [call] = client._calls.values()
        client._expire(call)  # it was sent in time
        goes_on.set()
        assert await asked == [b"x"]


async def test_a_broker_that_comes_later_gets_what_waited(world):
    async with world.client() as client, world.worker("echo", echo):
        asked = asyncio.create_task(client.request("echo", b"early", timeout=10))
        await asyncio.sleep(0)
        async with world.broker():
            assert await asked == [b"early"]


@pytest.fixture
def broker_answers_first(monkeypatch):
    """The broker shares the client's event loop here: it gets far more time than the client to say why."""
    monkeypatch.setattr("transport.client._HEAD_START_LIMIT", 60.0)
    monkeypatch.setattr("transport.client._HEAD_START", 0.95)


async def test_no_such_service(world, broker_answers_first):
    async with world.broker(), world.client() as client:
        with pytest.raises(ServiceNotFound):
            await client.request("nobody", b"x", timeout=6.0)


async def test_a_busy_service_and_a_hanging_handler_end_at_the_deadline(world, broker_answers_first):
    async with world.broker(), world.client() as client, world.worker("slow", hang) as worker:
        await worker.registered()
        outcomes = await asyncio.gather(
            client.request("slow", b"1", timeout=0.3),
            client.request("slow", b"2", timeout=6.0),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [DeadlineExceeded] * 2
        assert "no reply" in str(outcomes[0])
        assert "busy" in str(outcomes[1])


async def test_the_handler_of_an_abandoned_request_runs_to_its_end(world):
    go_on, ended = asyncio.Event(), []

    async def slow(request):
        await go_on.wait()
        ended.append(request.body)
        return request.body

    async with world.broker() as broker, world.client() as client, world.worker("slow", slow) as worker:
        await worker.registered()
        asked = asyncio.create_task(client.request("slow", b"long", timeout=60))
        await until(lambda: worker._tasks)
        queued = asyncio.create_task(client.request("slow", b"never begun", timeout=60))
        await until(lambda: broker.counters["queued"])
        asked.cancel()
        queued.cancel()
        await until(lambda: broker.counters["cancelled"] == 2)
        go_on.set()
        assert await client.request("slow", b"next", timeout=5) == [b"next"]
        assert ended == [[b"long"], [b"next"]]
        assert broker.counters["late_replies"] == 1


async def test_more_in_flight_than_the_sockets_hold(world):
    async with world.broker(), world.client() as client, world.worker("echo", echo, credit=64) as worker:
        await worker.registered()
        numbers = [b"%d" % number for number in range(5000)]
        replies = await asyncio.gather(*(client.request("echo", number, timeout=20) for number in numbers))
        assert replies == [[number] for number in numbers]


async def test_a_stream_comes_in_order_and_ends_with_its_final(world):
    async def count(request):
        for number in range(100):
            await request.partial(b"%d" % number)
        return [b"100"]

    async with world.broker(), world.client() as client, world.worker("count", count, credit=4):
        for _ in range(2):
            parts = [part async for part in client.stream("count", idle_timeout=5)]
            assert [int(part.body[0]) for part in parts] == list(range(101))
            assert [part.final for part in parts] == [False] * 100 + [True]
        assert await client.request("count", timeout=5) == [b"100"]


async def test_a_stream_that_falls_silent_ends_at_its_idle_limit(world):
    async def stall(request):
        await request.partial(b"one")
        await asyncio.Event().wait()

    bodies = []
    async with world.broker(), world.client() as client, world.worker("stall", stall):
        with pytest.raises(DeadlineExceeded):
            await read_all(client.stream("stall", idle_timeout=0.3), bodies)
    assert bodies == [[b"one"]]


async def test_leaving_a_stream_cancels_its_handler(world):
    cancelled = asyncio.Event()

    async def forever(request):
        try:
            while True:
                await request.partial(b"tick")
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with world.broker(), world.client() as client, world.worker("clock", forever):
        stream = client.stream("clock", idle_timeout=5)
        assert (await anext(stream)).body == [b"tick"]
        await stream.aclose()
        async with asyncio.timeout(5):
            await cancelled.wait()


async def test_a_gap_in_a_stream_is_an_error(world):
    async def gap(request):
        await request.partial(b"1")
        request.sequence += 1
        await request.partial(b"3")
        return [b"end"]

    bodies = []
    async with world.broker(), world.client() as client, world.worker("gap", gap):
        with pytest.raises(PartialsLost, match="part 2"):
            await read_all(client.stream("gap", idle_timeout=5), bodies)
    assert bodies == [[b"1"]]


async def test_a_handler_that_raises_is_a_remote_error(world, caplog):
    async def fail(request):
        await request.partial(b"so far")
        raise KeyError("no such thing")

    async with world.broker(), world.client() as client, world.worker("fail", fail):
        with pytest.raises(RemoteError, match=r"KeyError: 'no such thing'") as caught:
            await client.request("fail", timeout=5)
        assert (caught.value.type_name, caught.value.service) == ("KeyError", "fail")
        bodies = []
        with pytest.raises(RemoteError):
            await read_all(client.stream("fail", idle_timeout=5), bodies)
        assert bodies == [[b"so far"]]
    assert "worker.handler_failed" in caplog.text


def test_errors_of_handlers_that_come_in_thousands_are_counted(caplog):
    at = 0.0
    failures = Failures("fail", now=lambda: at)

    def fail(error):
        try:
            raise error
        except type(error):
            failures.log(error)

    for _ in range(900):  # three minutes, as while the disk is full
        at += 0.2
        fail(OSError("no room"))
    fail(KeyError("another"))
    at += 60.1
    fail(OSError("no room"))
    lines = [(one.exc_info is not None, one.data["error"], one.data.get("count")) for one in caplog.records]
    assert lines == [
        *[(True, "OSError", None)] * 3,
        (False, "OSError", 300),
        (False, "OSError", 300),
        (True, "KeyError", None),
        (True, "OSError", None),
    ]
    assert caplog.records[3].data["reason"] == "no room"


def test_a_foreseen_error_of_a_handler_is_logged_with_what_it_says_and_without_a_traceback(caplog):
    failures = Failures("full", foreseen=[OSError])
    for error in (FileNotFoundError("no folder"), KeyError("a fault")):
        try:
            raise error
        except type(error):
            failures.log(error)
    lines = [(bool(one.exc_info), one.data.get("reason")) for one in caplog.records]
    assert lines == [(False, "no folder"), (True, "'a fault'")]


@pytest.mark.parametrize(
    "reply", ["text", [b"good", "text"], None, b"bytes", [b"x" * (64 * 2**20 + 1)], [b""] * 1001]
)
async def test_a_handler_that_returns_nonsense_is_a_remote_error(world, reply):
    async def nonsense(request):
        return reply

    async with world.broker(), world.client() as client, world.worker("odd", nonsense):
        with pytest.raises(RemoteError, match=r"TypeError|TooLarge"):
            await client.request("odd", timeout=5)


async def test_a_body_that_cannot_be_sent_is_refused_at_once(world):
    client = world.client()
    with pytest.raises(MalformedFrames):
        await client.request("größe", b"x", timeout=1)
    with pytest.raises(MalformedFrames):
        await client.request("", b"x", timeout=1)
    with pytest.raises(TooLarge):
        await client.request("echo", b"x" * (64 * 2**20 + 1), timeout=1)
    with pytest.raises(TooLarge):
        await client.request("echo", *[b""] * 1001, timeout=1)
    with pytest.raises(TypeError):
        await client.request("echo", "text", timeout=1)
    with pytest.raises(BadEndpoint):
        world.client("tcp://127.0.0.1:*")
    await client.aclose()


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan])
async def test_a_request_has_a_deadline(world, seconds):
    async with world.client() as client:
        with pytest.raises(ValueError, match="deadline"):
            await client.request("echo", timeout=seconds)
        with pytest.raises(ValueError, match="deadline"):
            await anext(client.stream("echo", idle_timeout=seconds))
        assert "in_flight=0" in repr(client)


async def test_closing_ends_requests_in_flight(world):
    async with world.broker(), world.worker("slow", hang):
        client = world.client()
        asked = asyncio.create_task(client.request("slow", timeout=60))
        await asyncio.sleep(0)
        await client.aclose()
        await client.aclose()
        with pytest.raises(ClientClosed):
            await asked
        with pytest.raises(ClientClosed):
            await client.request("slow", timeout=60)


async def test_a_new_broker_does_not_say_that_nothing_was_done(world):
    begun = asyncio.Event()

    async def serve(request):
        begun.set()
        await asyncio.Event().wait()

    worker = world.worker("s", serve)
    async with world.client() as client:
        async with world.broker():
            worker.start()
            asked = asyncio.create_task(client.request("s", timeout=3, idempotent=True))
            await begun.wait()
        await worker.aclose()
        async with world.broker():
            with pytest.raises(WorkerLost):
                await asked


async def test_a_broker_that_is_killed_and_comes_back_mid_traffic(world):
    """Idempotent requests all succeed; the others succeed or say that the connection was lost. None hangs."""
    payload = BrokerSettings(
        client_endpoint=world.client_endpoint, worker_endpoint=world.worker_endpoint, limits=FAST
    ).encode()

    async def work(request):
        await asyncio.sleep(0.02)
        return request.body

    async def keep_asking(number, outcomes, stop):
        while not stop.is_set():
            idempotent = number % 2 == 0
            try:
                reply = await client.request("echo", b"%d" % number, timeout=20, idempotent=idempotent)
                outcomes.append((idempotent, reply == [b"%d" % number]))
            except ConnectionLost:
                outcomes.append((idempotent, "lost"))

    outcomes, tasks, stop = [], [], asyncio.Event()
    async with world.worker("echo", work, credit=32) as worker, world.client() as client:
        async with process(run_broker, payload) as first, asyncio.TaskGroup() as group:
            await worker.registered()
            tasks += [group.create_task(keep_asking(number, outcomes, stop)) for number in range(20)]
            await until(lambda: len(outcomes) >= 100)
            first.kill()
            await until(lambda: not client.connected)
            async with process(run_broker, payload) as second:
                before = len(outcomes)
                await until(lambda: len(outcomes) >= before + 200)
                stop.set()
                await asyncio.gather(*tasks)
                second.terminate()
                await asyncio.to_thread(second.join, 10)
        assert worker.conversations >= 2
    assert {outcome for idempotent, outcome in outcomes if idempotent} == {True}
    assert {outcome for idempotent, outcome in outcomes if not idempotent} == {True, "lost"}


async def test_no_other_connection_until_the_deadline_is_said(world):
    received = asyncio.Event()

    async def never(_request):
        received.set()
        await asyncio.Event().wait()

    async with world.client() as client, world.worker("slow", never):
        async with world.broker():
            asked = asyncio.create_task(client.request("slow", timeout=3, idempotent=True))
            await received.wait()
        with pytest.raises(ConnectionLost, match=r"ipc:.* broke, and there was no other one by the deadline"):
            await asked


async def test_errors_have_one_root(world):
    async with world.client() as client:
        with pytest.raises(TransportError, match="echo"):
            await client.request("echo", timeout=0.05)
