"""What is owed to slow readers: in order, bounded, shared, and dropped at once when one has gone."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.transport.conftest_peers import echo, until
from transport import slow_readers
from transport.broker import Broker, BrokerSettings
from transport.broker_state import BrokerLimits
from transport.envelope import RequestEnvelope, read_reply
from transport.frames import BODY_LIMIT
from transport.slow_readers import SlowReaders
from transport.sockets import Sent
from transport.worker import Worker

ASKED = 5_000
NAME = b"mmi." + b"x" * 240


class Socket:
    """Says of each client what a send comes to, and notes what went out."""

    def __init__(self):
        self.answers: dict[bytes, Sent] = {}
        self.tried: list[bytes] = []
        self.sent: list[list[bytes]] = []

    def send(self, frames):
        self.tried.append(frames[0])
        answer = self.answers.get(frames[0], Sent.OK)
        if answer is Sent.OK:
            self.sent.append(frames)
        return answer


async def ask_and_do_not_read(peer, *, last=NAME):
    """More than the high-water marks and the kernel take."""

    def ask():
        for _ in range(ASKED - 1):
            peer.send(b"MDPC02", b"\x01", NAME, b"x")
        peer.send(b"MDPC02", b"\x01", last, b"x")

    await asyncio.to_thread(ask)


def test_pending_messages_are_sent_in_order_before_newer_ones():
    socket = Socket()
    slow = SlowReaders(socket.send)
    socket.answers[b"c"] = Sent.FULL
    assert [slow.send(b"c", [b"c", b"%d" % number]) for number in range(3)] == [Sent.OK] * 3
    socket.answers.clear()
    assert slow.send(b"c", [b"c", b"3"]) is Sent.OK
    assert slow.flush() == []
    assert socket.sent == [[b"c", b"%d" % number] for number in range(4)]
    assert len(slow) == 0


def test_a_client_that_is_gone_costs_one_send_and_is_reported_once():
    socket = Socket()
    slow = SlowReaders(socket.send)
    socket.answers[b"c"] = Sent.FULL
    for number in range(10_000):
        slow.send(b"c", [b"c", b"%d" % number])
    slow.send(b"d", [b"d", b"x"])
    socket.answers[b"c"] = Sent.UNREACHABLE
    socket.tried.clear()
    assert slow.flush() == [[b"c", b"0"]]
    assert socket.tried == [b"c"]
    assert len(slow) == 0
    assert slow.send(b"c", [b"c", b"x"]) is Sent.UNREACHABLE


def test_one_slow_reader_leaves_room_for_others(monkeypatch):
    monkeypatch.setattr(slow_readers, "PENDING_MESSAGES", 100)
    monkeypatch.setattr(slow_readers, "PENDING_BYTES", 10_000)
    socket = Socket()
    slow = SlowReaders(socket.send)
    socket.answers = dict.fromkeys((b"a", b"b", b"c"), Sent.FULL)
    for number in range(1_000):
        slow.send(b"a", [b"a", b"%d" % number])
    assert (len(slow), slow.dropped) == (51, 949)
    slow.send(b"b", [b"b", b"x" * 5_000])
    slow.send(b"c", [b"c", b"x"])
    assert (len(slow), slow.dropped) == (53, 949)


def test_an_answer_of_the_greatest_size_fits_beside_one_reader_with_the_greatest_share():
    socket = Socket()
    slow = SlowReaders(socket.send)
    socket.answers = dict.fromkeys((b"hog", b"c"), Sent.FULL)
    body = b"x" * BODY_LIMIT
    while not slow.dropped:
        slow.send(b"hog", [b"hog", b"head", body])
    for part in range(2):
        slow.send(b"c", [b"c", b"head%d" % part, body])
    assert slow.dropped == 1, "the second answer of a client that is busy for a moment fits too"


def partial(client, number, size=0):
    return [client, b"MDPC02", b"\x02", b"echo", b"%d" % number + b"x" * size]


def final(client, number, size=0):
    return [client, b"MDPC02", b"\x03", b"echo", b"%d" % number + b"x" * size]


@pytest.fixture
def small(monkeypatch):
    """Room for 100 messages and 10,000 bytes; nobody reads."""
    monkeypatch.setattr(slow_readers, "PENDING_MESSAGES", 100)
    monkeypatch.setattr(slow_readers, "PENDING_BYTES", 10_000)
    socket = Socket()
    socket.answers = dict.fromkeys((b"a", b"b", b"c", b"d"), Sent.FULL)
    slow = SlowReaders(socket.send)

    def read():
        socket.answers.clear()
        assert slow.flush() == []
        assert len(slow) == 0
        return socket.sent

    return slow, read


@pytest.mark.parametrize("front", [[b"MDPC02", b"\x02", b"echo"], [b"", b"MDPC02", b"\x03"]])
def test_of_parts_for_which_there_is_no_room_the_newest_are_kept(small, front):
    slow, read = small
    for number in range(1_000):
        slow.send(b"a", [b"a", *front, b"%d" % number])
    assert (len(slow), slow.dropped) == (51, 949)
    slow.send(b"a", final(b"a", 1_000))
    assert [int(frames[-1]) for frames in read()] == [*range(950, 1_001)], "in order, the final last"


def test_a_part_takes_the_place_of_no_final(small):
    slow, read = small
    for number in range(60):
        slow.send(b"a", final(b"a", number))
    slow.send(b"a", partial(b"a", 60))
    assert (len(slow), slow.dropped) == (51, 10)
    assert [int(frames[-1]) for frames in read()] == [*range(51)]


@pytest.mark.parametrize("kind", [partial, final])
def test_a_final_is_dropped_for_no_backlog_of_others(small, kind):
    slow, read = small
    for number in range(9):
        for client in (b"a", b"b", b"c"):
            slow.send(client, kind(client, number, 400))
    mine = final(b"d", 0, 6_000)
    slow.send(b"d", mine)
    assert slow.dropped
    sent = read()
    assert mine in sent
    assert sum(len(frame) for frames in sent for frame in frames) <= 10_000
    for client in (b"a", b"b", b"c"):
        numbers = [int(frames[-1].strip(b"x")) for frames in sent if frames[0] == client]
        assert len(numbers) >= 1, "nobody loses all"
        assert numbers == sorted(numbers)


def test_others_lose_parts_before_finals(small):
    slow, read = small
    for number in range(4):
        slow.send(b"a", (final if number == 0 else partial)(b"a", number, 1_000))
    slow.send(b"d", final(b"d", 0, 7_000))
    kept = [(frames[0], int(frames[-1].strip(b"x"))) for frames in read()]
    assert (b"a", 0) in kept
    assert (b"d", 0) in kept
    assert (b"a", 3) in kept
    assert (b"a", 1) not in kept


def test_a_final_too_many_is_dropped_for_ones_own_backlog(small):
    slow, read = small
    for number in range(20):
        slow.send(b"a", final(b"a", number, 1_000))
    slow.send(b"b", partial(b"b", 0, 1_000))
    slow.send(b"a", final(b"a", 20, 1_000))
    sent = read()
    assert [int(frames[-1].strip(b"x")) for frames in sent if frames[0] == b"a"] == [*range(5)]
    assert partial(b"b", 0, 1_000) in sent


async def test_a_large_answer_to_a_client_that_is_busy_for_a_moment_arrives(world):
    asked, body = asyncio.Event(), b"x" * BODY_LIMIT

    async def large(request):
        asked.set()
        return [body]

    async with world.broker(limits=BrokerLimits()) as broker, world.worker("large", large) as worker:
        await worker.registered()
        async with world.raw(world.client_endpoint) as busy:
            await ask_and_do_not_read(busy, last=b"large")
            async with asyncio.timeout(30):
                await asked.wait()
            await until(lambda: broker.counters["finals"])
            assert broker.counters["pending"]
            for _ in range(ASKED - 1):
                await busy.receive()
            assert (await busy.receive())[3] == body
        assert broker.counters["slow_client_drops"] == 0


async def test_a_watcher_that_does_not_read_costs_nobody_else_and_sees_its_gap(world, monkeypatch):
    monkeypatch.setattr(slow_readers, "PENDING_MESSAGES", 1_000)
    parts = 30_000

    async def stream(request):
        for number in range(parts):
            await request.partial(b"%d" % number)
        return [b"end"]

    async with (
        world.broker(limits=BrokerLimits()) as broker,
        Worker(world.worker_endpoint, "stream", stream, context=world.context) as streaming,
        Worker(world.worker_endpoint, "echo", echo, context=world.context) as echoing,
        world.client() as client,
        world.raw(world.client_endpoint) as watcher,
        asyncio.timeout(60),
    ):
        await asyncio.gather(streaming.registered(), echoing.registered())
        envelope = RequestEnvelope(7, b"s" * 16, stream=True).frame()
        watcher.send(b"MDPC02", b"\x01", b"stream", envelope, b"x")
        asked = 0
        while broker.counters["partials"] < parts or broker.counters["finals"] <= asked:
            assert await client.request("echo", b"%d" % asked, timeout=20) == [b"%d" % asked]
            asked += 1
        dropped = broker.counters["slow_client_drops"]
        assert dropped
        numbers, frames = [], []
        while not numbers or frames[1] != b"\x03":
            frames = await watcher.receive()
            numbers.append(read_reply(frames[3]).sequence)
        assert frames[4] == b"end"
        assert numbers == sorted(numbers)
        assert numbers[-1] == parts + 1
        assert len(numbers) == parts + 1 - dropped
        assert await client.request("echo", b"x", timeout=20) == [b"x"]


@pytest.mark.parametrize("sockets", [1, 2])
async def test_slow_readers_are_tried_after_a_pause_not_for_each_message_of_others(
    world, monkeypatch, sockets
):
    flushes, pause, flush = [], 0.5, SlowReaders.flush
    monkeypatch.setattr(slow_readers, "PAUSE_SECONDS", pause)
    monkeypatch.setattr(SlowReaders, "flush", lambda slow: flushes.append(slow) or flush(slow))
    private = f"ipc://{world.folder}/private.sock"
    async with AsyncExitStack() as stack:
        settings = BrokerSettings(
            client_endpoint=world.client_endpoint,
            worker_endpoint=world.worker_endpoint,
            private_endpoint=private,
        )
        broker = await stack.enter_async_context(Broker(settings, on_event=lambda *_, **__: None))
        readers = [
            await stack.enter_async_context(world.raw(endpoint))
            for endpoint in (world.client_endpoint, private)[:sockets]
        ]
        for reader in readers:
            await ask_and_do_not_read(reader)
        await until(lambda: broker.counters["mmi"] == sockets * ASKED)
        assert all(map(len, [slow for slow in broker._slow.values() if slow in flushes]))
        client = await stack.enter_async_context(world.client())
        loop = asyncio.get_running_loop()
        await client.request("mmi.service", b"x", timeout=20)
        begun, before = loop.time(), len(flushes)
        for _ in range(200):
            await client.request("mmi.service", b"x", timeout=20)
        assert len(flushes) - before <= sockets * (1 + (loop.time() - begun) / pause)
        for reader in readers:
            for _ in range(ASKED):
                await reader.receive()
        assert broker.counters["pending"] == 0
        assert broker.counters["slow_client_drops"] == 0
