"""The driver's sockets: peers that are wrong, mean, slow or large, and the loop that goes on turning."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket
import struct
import tempfile
import time
from pathlib import Path

import msgspec
import pytest

from governor.tasks.protocol.wire import Begun, Bundle, Input, Over, frames
from governor.tasks.runners import channel
from tests.support.tasks.channel_world import SECRET, Driver, Peer, hello, receive_two, send_all, small_work
from tests.support.turns import Turns

TRIES = 3
HOLD = 0.08
"""Seconds of one turn for 50 MB. Their copy takes 25 ms, most of it 12,000 page faults; on a virtual machine that has
never touched these pages before, 200 ms: see `touched_memory`.
"""


@pytest.fixture
def touched_memory():
    """The host has given this machine the pages that the test is about to use."""
    for _ in range(2):
        bytearray(b"\1") * 400_000_000


@pytest.fixture
async def driver():
    loop_errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
    with tempfile.TemporaryDirectory(prefix="runners-") as folder:
        driver = Driver(Path(folder))
        yield driver
        for connection, _ in driver.guests:
            connection.close()
        driver.listener.close()
        assert is_empty(folder)
    assert not loop_errors


@pytest.fixture
async def connect(driver):
    with contextlib.ExitStack() as stack:

        async def connect(*, tcp=False, said=b""):
            peer = Peer(driver, tcp=tcp)
            stack.callback(peer.close)
            await peer.connect()
            await peer.say(said)
            return peer

        yield connect


@pytest.fixture
async def runner(driver, connect):
    """A proper one, which must not suffer from what others do."""
    peer = await connect(said=frames([hello()]))
    await driver.until(lambda: driver.guests)

    async def still_works():
        count = len(driver.received)
        await peer.say(frames([Begun(1, 0, 0.5)]))
        await driver.until(lambda: len(driver.received) > count)
        driver.guests[0][0].send([Bundle([small_work()])])
        assert (await peer.bundle()).work_items[0].call == "a:b"

    peer.still_works = still_works
    await still_works()
    return peer


def is_empty(folder):
    return not list(Path(folder).iterdir())


def nested(depth):
    """An Over whose value is a list in a list in a list."""
    whole = msgspec.msgpack.encode(Over(1, 0, 1.0, 1.0, value="here"))
    document = whole.replace(b"\xa4here", b"\x91" * depth + b"\xc0")
    return struct.pack("<I", len(document)) + document


MALFORMED = {
    "nothing": struct.pack("<I", 0),
    "two gigabytes": struct.pack("<I", 2**31 - 1),
    "four gigabytes": b"\xff\xff\xff\xff",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no msgpack": struct.pack("<I", 3) + b"\xc1\xc1\xc1",
    "an array": struct.pack("<I", 1) + b"\x90",
    "wrong types": struct.pack("<I", 8) + b"\x93\xa5Begun\x01",
    "nested": nested(3000),
    "no secret": frames([hello(secret=b"")]),
    "wrong secret": frames([hello(secret=b"t" * 32)]),
    "not hello": frames([Begun(1, 0, 1.0)]),
    "not hello, then hello": frames([Begun(1, 0, 1.0), hello()]),
    "a secret as long as a book": frames([hello(secret=b"s" * 5000)]),
}


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize("said", MALFORMED.values(), ids=MALFORMED)
async def test_who_does_not_begin_with_the_secret_is_shut_out(driver, connect, runner, said, tcp):
    peer = await connect(tcp=tcp, said=said)
    assert await peer.is_shut()
    await runner.still_works()
    assert len(driver.guests) == 1


@pytest.mark.parametrize(
    "said", [MALFORMED["nothing"], MALFORMED["no msgpack"], MALFORMED["four gigabytes"], nested(3000)]
)
async def test_a_runner_that_turns_to_nonsense_loses_its_connection_and_what_it_said_before_counts(
    driver, connect, runner, said
):
    peer = await connect(said=frames([hello(runner=1), Begun(7, 0, 1.0), Begun(8, 0, 1.0)]) + said)
    assert await peer.is_shut()
    assert driver.ended == [1]
    assert [each.ticket for each in driver.received[-2:]] == [7, 8]
    await runner.still_works()


async def test_noise_of_any_kind_disturbs_nobody(driver, connect, runner):
    noise = random.Random(7)
    proper = bytes(frames([hello(runner=5), Over(1, 0, 1.0, 1.0, value={"a": [1, 2]}, metrics={"x": 0.5})]))
    for _ in range(150):
        data = bytearray(proper)
        for _ in range(noise.randrange(1, 8)):
            match noise.randrange(3):
                case 0:
                    data[noise.randrange(len(data))] = noise.randrange(256)
                case 1:
                    del data[noise.randrange(len(data)) :]
                    data += b"\0"
                case _:
                    data.insert(noise.randrange(len(data)), noise.randrange(256))
        peer = await connect(said=data)
        peer.close()
    await runner.still_works()
    assert {first.secret for _, first in driver.guests} == {SECRET}


async def test_frames_may_arrive_in_pieces_of_any_size(driver, connect, runner):
    data = frames([hello(runner=1), *(Begun(n, 0, 1.0) for n in range(40))])
    peer = await connect()
    for start in range(0, len(data), 7):
        await peer.say(data[start : start + 7])
        await asyncio.sleep(0)
    await driver.until(lambda: driver.received and driver.received[-1].ticket == 39)
    assert [each.ticket for each in driver.received[-40:]] == list(range(40))


async def test_half_a_frame_and_then_the_end_is_an_end(driver, connect, runner):
    peer = await connect(said=frames([hello(runner=1), Begun(7, 0, 1.0)]) + b"\x10\0\0\0half")
    peer.close()
    await driver.until(lambda: driver.ended)
    assert driver.received[-1].ticket == 7
    await runner.still_works()


async def test_silent_connections_keep_nobody_out_and_are_ended(driver, connect, runner, monkeypatch):
    monkeypatch.setattr(channel, "HELLO_SECONDS", 0.3)
    silent = [await connect(tcp=True) for _ in range(300)]
    late = await connect(said=frames([hello(runner=1)]))
    await driver.until(lambda: len(driver.guests) == 2)
    await runner.still_works()
    for peer in silent:
        assert await peer.is_shut()
    driver.guests[1][0].send([Bundle([])])
    assert await late.bundle() == Bundle([])


async def test_unauthenticated_tcp_connections_do_not_evict_a_runner_about_to_send_hello(
    driver, connect, runner
):
    own = await connect()
    pending = [await connect(tcp=True) for _ in range(channel.MAX_UNAUTHENTICATED + 40)]
    await own.say(frames([hello(runner=1)]))
    await driver.until(lambda: len(driver.guests) == 2)
    assert pending


async def test_an_unauthenticated_flood_does_not_block_the_loop(driver, connect, runner):
    async def flood():
        while True:
            peer = Peer(driver, tcp=True)
            with contextlib.suppress(OSError):
                await peer.connect()
                await peer.say(b"\x00\x08\0\0" + b"x" * 100_000)
            peer.close()

    floods = [asyncio.create_task(flood()) for _ in range(8)]
    async with Turns() as turns:
        for _ in range(50):
            await runner.still_works()
    for task in floods:
        task.cancel()
    await asyncio.wait(floods)
    assert turns.longest < 0.02


async def test_no_descriptors_left_costs_a_pause_not_the_loop(driver, runner):
    """A listener that cannot accept stays readable: without a pause the loop would spin on it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    held = [*waiting]
    highest = max(sock.fileno() for sock in waiting)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(socket.socket())
        for sock in waiting:
            sock.connect(driver.listener.path)
        before = time.thread_time()
        await asyncio.sleep(0.3)
        assert time.thread_time() - before < 0.1
        await runner.still_works()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    waiting[0].sendall(frames([hello(runner=1)]))
    await driver.until(lambda: len(driver.guests) == 2)
    for sock in held:
        sock.close()


@pytest.mark.usefixtures("touched_memory")
async def test_large_documents_come_whole_and_the_loop_turns_meanwhile(driver, connect, runner):
    payload = random.Random(1).randbytes(50_000_000)
    peer = await connect(said=frames([hello(runner=1)]))
    longest = []
    for ticket in range(TRIES):
        said = frames([Over(ticket, 0, 1.0, 1.0, payload=payload), Begun(100 + ticket, 0, 2.0)])
        async with Turns() as turns:
            await asyncio.to_thread(send_all, peer.sock, said)
            await driver.until(
                lambda ticket=ticket: driver.received and driver.received[-1].ticket == 100 + ticket
            )
        assert driver.received[-2].payload == payload
        longest.append(turns.longest)
    assert min(longest) < HOLD, longest
    await runner.still_works()


@pytest.mark.usefixtures("touched_memory")
async def test_large_bundles_go_out_while_the_loop_turns(driver, runner):
    args = {"data": random.Random(1).randbytes(50_000_000)}
    work = small_work(ticket=9, args=args, inputs={"a": [Input(value=1)]})
    longest = []
    for _ in range(TRIES):
        async with Turns() as turns:
            driver.guests[0][0].send([Bundle([work])])
            driver.guests[0][0].send([Bundle([])])
            received = await asyncio.to_thread(receive_two, runner.sock)
        assert received[0].work_items == [work]
        assert received[1] == Bundle([])
        longest.append(turns.longest)
    assert min(longest) < HOLD, longest
    await runner.still_works()


async def test_a_burst_of_reports_is_taken_in_portions(driver, runner):
    said = frames(
        [Over(n, 0, 1.0, 1.0, value={"reward": 0.5}, metrics={"reward": 0.5}) for n in range(100_000)]
    )
    async with Turns() as turns:
        await asyncio.to_thread(send_all, runner.sock, said)
        await driver.until(lambda: driver.received and driver.received[-1].ticket == 99_999)
    assert [each.ticket for each in driver.received[-100_000:]] == list(range(100_000))
    assert max(driver.reads) < 1000
    assert turns.longest < 0.02


async def test_all_that_a_dead_runner_wrote_is_read_by_drain(driver, connect, runner):
    peer = await connect(said=frames([hello(runner=1)]))
    await driver.until(lambda: len(driver.guests) == 2)
    peer.sock.setblocking(True)
    peer.sock.sendall(frames([Begun(n, 0, 1.0) for n in range(3000)]))
    peer.close()
    driver.guests[1][0].drain()
    assert [each.ticket for each in driver.received[-3000:]] == list(range(3000))
    assert driver.ended == [1]


async def test_sending_to_one_who_is_gone_or_does_not_read_neither_waits_nor_raises(driver, connect, runner):
    peer = await connect(said=frames([hello(runner=1)]))
    await driver.until(lambda: len(driver.guests) == 2)
    connection = driver.guests[1][0]
    large = Bundle([small_work(ticket=1, args={"x": "y" * 2_000_000})])
    for _ in range(5):
        connection.send([large])
    peer.close()
    await driver.until(lambda: driver.ended)
    connection.send([large])
    connection.close()
    await runner.still_works()


async def test_what_arrives_while_it_rests_is_read_at_once(driver, runner):
    connection, _ = driver.guests[0]
    driver.reads.clear()
    before = len(driver.received)
    connection.rest(1.0)
    for number in range(100):
        send_all(runner.sock, frames([Begun(1, number, 0.5)]))
    await driver.until(lambda: len(driver.received) == before + 100)
    assert driver.reads == [100]
    await runner.still_works()


async def test_what_arrives_after_it_has_rested_is_read(driver, runner):
    connection, _ = driver.guests[0]
    for _ in range(2):
        rested = asyncio.Event()
        connection.rest(0.0)
        asyncio.get_running_loop().call_later(0.0, rested.set)
        await rested.wait()
    await runner.still_works()


async def test_one_that_is_closed_while_it_rests_stays_closed(driver, runner):
    connection, _ = driver.guests[0]
    connection.rest(1.0)
    runner.close()
    connection.close()
    assert driver.ended == [0]
    await asyncio.wait_for(connection.closed.wait(), 1)


async def test_a_connection_is_handed_over_whole_or_not_at_all(driver, runner):
    connection, _ = driver.guests[0]
    send_all(runner.sock, frames([Begun(1, 0, 0.5)]))
    assert connection.detach() is None, "what it has said is not read yet"
    connection.drain()
    sock = connection.detach()
    try:
        assert not connection.is_open
        send_all(runner.sock, b"more")
        sock.setblocking(True)
        assert sock.recv(4) == b"more"
        assert not driver.ended
    finally:
        sock.close()
