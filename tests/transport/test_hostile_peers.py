"""A real broker among peers that flood it, hold its connections, kill its workers, and die at the worst moment."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
import zmq

from tests.transport import hostile_peers as hostile
from tests.transport.conftest_peers import FAST, echo, process, run_broker, spawn, until
from transport.broker import BrokerSettings
from transport.broker_core import BrokerLimits
from transport.errors import WorkerLost

ZMTP_HEARTBEATS = 3.0
"""Seconds in which the next one would be due: they were sent every 2 s."""


def payload(world, limits=FAST):
    return BrokerSettings(
        client_endpoint=world.client_endpoint, worker_endpoint=world.worker_endpoint, limits=limits
    ).encode()


@asynccontextmanager
async def busiest():
    """The most CPU time, in seconds, that this thread used between two turns of the event loop meanwhile."""
    gaps = [0.0]

    async def look():
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            gaps[0] = max(gaps[0], now - last)
            last = now

    looking = asyncio.create_task(look())
    try:
        yield gaps
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


# -- peers that die ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "who",
    [
        "broker",
        pytest.param("client", marks=pytest.mark.long),
        pytest.param("worker", marks=pytest.mark.long),
    ],
)
async def test_a_peer_that_is_killed_with_its_queue_full_does_not_abort_the_broker(world, who):
    """libzmq aborts when a ZMTP heartbeat is due for a peer that has hung up while the queue of what it sent was full."""
    endpoint = f"ipc://{world.folder}/raw.sock"
    blocked, full, release = spawn.Event(), spawn.Event(), spawn.Event()
    if who == "broker":
        busy = process(
            hostile.run_busy_broker, world.client_endpoint, world.worker_endpoint, blocked, release
        )
        peer = process(hostile.fill, world.client_endpoint, blocked, full)
    else:
        run = hostile.run_busy_client if who == "client" else hostile.run_busy_worker
        busy = process(run, endpoint, blocked, release)
        peer = process(hostile.fill_from_the_broker, endpoint, blocked, full)
    async with busy as victim:
        async with peer as dies:
            assert await asyncio.to_thread(full.wait, 30)
            dies.kill()
        await asyncio.to_thread(victim.join, ZMTP_HEARTBEATS)
        assert victim.exitcode is None
        release.set()
        if who == "broker":
            async with world.client() as client:
                assert await client.request("mmi.service", b"x", timeout=30) == [b"404"]
        else:
            await asyncio.to_thread(victim.join, 30)
            assert victim.exitcode == 0
    for file in world.folder.iterdir():
        file.unlink()


async def test_a_request_that_kills_its_workers_is_given_up_after_two(world):
    ready = spawn.Semaphore(0)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.broker())
        client = await stack.enter_async_context(world.client())
        workers = [
            await stack.enter_async_context(process(hostile.run_deadly_worker, world.worker_endpoint, ready))
            for _ in range(4)
        ]
        for _ in workers:
            assert await asyncio.to_thread(ready.acquire, True, 30)
        with pytest.raises(WorkerLost, match="2 workers were lost"):
            await client.request("deadly", b"x", timeout=30, idempotent=True)
        await until(lambda: sum(worker.is_alive() for worker in workers) == 2)


async def test_pending_messages_of_a_reader_that_goes_are_dropped(world):
    """One message shows that it has gone; the thousands behind it are dropped with it."""
    all_sent = asyncio.Event()

    async def send_parts(request):
        for number in range(12_000):
            await request.partial(b"%06d" % number)
        all_sent.set()
        return [b"end"]

    async with world.broker() as broker, world.worker("stream", send_parts) as worker:
        await worker.registered()
        async with world.raw(world.client_endpoint) as reader:
            reader.socket.set(zmq.RCVHWM, 1)
            reader.send(b"MDPC02", b"\x01", b"stream", b"go")
            async with asyncio.timeout(60):
                await all_sent.wait()
            await until(lambda: broker.counters["finals"] == 1)
        await until(lambda: broker.counters["undeliverable"] > 0)
        assert broker.counters["pending"] == 0
        assert broker.counters["undeliverable"] == 1


# -- floods ------------------------------------------------------------------------------------------------


async def test_clients_that_flood_do_not_starve_the_workers(world):
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(process(run_broker, payload(world)))
        worker = await stack.enter_async_context(world.worker("echo", echo))
        client = await stack.enter_async_context(world.client())
        assert await client.request("echo", b"first", timeout=30) == [b"first"]
        for _ in range(3):
            await stack.enter_async_context(process(hostile.run_flood, world.client_endpoint))
        for number in range(30):
            assert await client.request("echo", b"%d" % number, timeout=30) == [b"%d" % number]
        assert worker.conversations == 1
    for file in world.folder.iterdir():
        file.unlink()


async def test_a_message_of_half_a_million_frames_delays_no_other(world):
    def send(peer):
        for _ in range(500_000):
            peer.socket.send(b"", zmq.SNDMORE)
        peer.socket.send(b"")

    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(world.broker())
        peer = await stack.enter_async_context(world.raw(world.client_endpoint))
        await stack.enter_async_context(world.worker("echo", echo))
        gaps = await stack.enter_async_context(busiest())
        await asyncio.to_thread(send, peer)
        peer.send(b"MDPC02", b"\x01", b"echo", b"after it")
        await until(lambda: broker.counters["finals"] == 1)
        assert await peer.receive() == [b"MDPC02", b"\x03", b"echo", b"after it"]
        assert (broker.counters["oversized"], broker.counters["malformed"]) == (1, 1)
        assert gaps[0] < 0.1


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize(
    "noise",
    [
        b"\x01\x00\x08\x00MDPC02--",  # ZMTP 1.0: no identity, then a message
        b"\xff" + bytes(7) + b"\x01\x7f\x00\x05\x01\x00\x08\x00MDPC02--",  # 1.0 in a versioned greeting
        b"\xff" + bytes(7) + b"\x01\x7f\x01\x05\x00\x00\x08MDPC02--",  # 2.0
        bytes(range(1, 200)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_peers_of_old_protocols_and_noise_are_refused(world, noise, tcp):
    async with world.broker(tcp=tcp) as broker:
        for endpoint in (broker.client_endpoint, broker.worker_endpoint):
            family = socket.AF_INET if tcp else socket.AF_UNIX
            host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
            with socket.socket(family) as peer:
                peer.settimeout(10)
                await asyncio.to_thread(
                    peer.connect, (host, int(port)) if tcp else endpoint.removeprefix("ipc://")
                )
                peer.sendall(noise * 20)
                with suppress(ConnectionResetError):
                    while await asyncio.to_thread(peer.recv, 1000):
                        pass
        await until(lambda: broker.counters["connections"] == 0)
        assert broker.counters["malformed"] == 0


# -- connections -------------------------------------------------------------------------------------------


async def test_more_connections_than_files_end_no_broker(world, capfd):
    files, wanted = 1024, 1500
    path = world.client_endpoint.removeprefix("ipc://")
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(
            process(hostile.run_broker_with_files, payload(world), files)
        )
        await stack.enter_async_context(world.worker("echo", echo))
        async with world.client() as client:
            assert await client.request("echo", b"before", timeout=30) == [b"before"]
        for _ in range(2):
            opened = spawn.Event()
            async with process(hostile.hold_connections, path, wanted, opened):
                assert await asyncio.to_thread(opened.wait, 60)
        async with world.client() as client:
            assert await client.request("echo", b"after", timeout=30) == [b"after"]
        assert broker.exitcode is None
    assert (
        '{"event":"broker.connections_refused","level":"warning","socket":"clients"' in capfd.readouterr().err
    )
    for file in world.folder.iterdir():
        file.unlink()


@pytest.mark.parametrize("tcp", [False, True])
async def test_connections_are_bounded_and_come_in_again_when_there_is_room(world, tcp):
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(
            world.broker(limits=BrokerLimits(heartbeat=0.1, connections=5), tcp=tcp)
        )
        worker = world.worker("echo", echo, endpoint=broker.worker_endpoint)
        await stack.enter_async_context(worker)
        await worker.registered()
        async with AsyncExitStack() as held:
            for _ in range(5):
                peer = await held.enter_async_context(world.raw(broker.client_endpoint))
                peer.send(b"MDPC02", b"\x01", b"mmi.service", b"echo")
                assert (await peer.receive())[-1] == b"200"  # it has come in; a count could be another peer's
            client = await stack.enter_async_context(world.client(broker.client_endpoint))
            # A message may come through before its connection is refused: that is no fault.
            asked = asyncio.create_task(client.request("echo", b"waits", timeout=30, idempotent=True))
            await until(lambda: broker.counters["connections_refused"] > 3)
        assert await asked == [b"waits"]
        await until(
            lambda: broker.counters["connections"] == 2
        )  # the worker, and the client that has come in
    assert world.events == [
        "broker.started",
        "broker.connections_refused",
        "broker.connections_taken_again",
        "broker.stopped",
    ]
