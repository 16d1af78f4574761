from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import time
from contextlib import AsyncExitStack

import pytest
import zmq

from tests.transport.conftest_peers import FAST, echo, open_fds, process, run_broker, until
from transport import frames as mdp
from transport.broker import Broker, BrokerSettings
from transport.broker_core import BrokerLimits
from transport.errors import BadEndpoint, EndpointInUse, RequestQueueFull, TooLarge


@pytest.mark.parametrize("tcp", [False, True])
async def test_request_and_reply(world, tcp):
    async with world.broker(tcp=tcp) as broker:
        worker = world.worker("echo", echo, credit=64, endpoint=broker.worker_endpoint)
        async with worker, world.client(broker.client_endpoint) as client:
            assert await client.request("echo", b"one", b"", b"two", timeout=5) == [b"one", b"", b"two"]
            assert await client.request("echo", timeout=5) == []
            large = os.urandom(3_000_000)
            assert await client.request("echo", b"small", large, timeout=5) == [b"small", large]
            bodies = [[b"%d" % number] for number in range(500)]
            replies = await asyncio.gather(*(client.request("echo", *body, timeout=10) for body in bodies))
            assert replies == bodies
        assert world.events == ["broker.started"]
    assert world.events == ["broker.started", "broker.stopped"]


async def test_sockets_are_private_and_gone_afterwards(world):
    world.folder = world.folder / "made"
    async with world.broker():
        assert stat.S_IMODE(world.folder.stat().st_mode) == 0o700
        modes = {path.name: path.stat().st_mode for path in world.folder.iterdir()}
        assert {name: stat.S_IMODE(mode) for name, mode in modes.items()} == {
            "broker.sock": 0o600,
            "workers.sock": 0o600,
        }
        assert all(stat.S_ISSOCK(mode) for mode in modes.values())
    assert list(world.folder.iterdir()) == []
    world.folder.rmdir()


async def test_a_socket_that_another_process_has_put_in_the_place_of_ours_stays(world):
    path = world.folder / "broker.sock"
    async with world.broker():
        path.unlink()
        other = socket.socket(socket.AF_UNIX)
        other.bind(str(path))
    with other:
        assert [each.name for each in world.folder.iterdir()] == ["broker.sock"]
    path.unlink()


async def test_the_second_broker_is_refused_and_the_first_one_works_on(world):
    async with world.broker(), world.worker("echo", echo), world.client() as client:
        second = world.broker()
        with pytest.raises(EndpointInUse):
            await second.serve()
        assert await client.request("echo", b"still here", timeout=5) == [b"still here"]


async def test_tcp_in_use_is_refused(world):
    async with world.broker(tcp=True) as broker:
        second = Broker(
            BrokerSettings(client_endpoint=broker.client_endpoint, worker_endpoint=world.worker_endpoint)
        )
        with pytest.raises(EndpointInUse, match="in use"):
            await second.serve()


async def test_open_addresses_are_refused(world):
    with pytest.raises(BadEndpoint, match="loopback"):
        await Broker(
            BrokerSettings(client_endpoint="tcp://0.0.0.0:*", worker_endpoint=world.worker_endpoint)
        ).serve()


async def test_noise_on_both_sockets_is_counted_and_does_no_harm(world):
    noise = [
        [b""],
        [b"MDPC02"],
        [b"MDPW02", b"\x01"],
        [b"MDPC02", b"\x01", b"echo"],
        [b"MDPC02", b"\x09", b"echo", b"x"],
        [b"MDPC02", b"\x01", b"echo", b"\xc1MDE" + b"x" * 40],
        [b"x" * 100_000] * 3,
        [b"MDPC02", b"\x01", b"echo", *[b"x"] * 2000],
        [b"\x80\x04cos\nsystem\n"],
    ]
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(world.broker())
        one = await stack.enter_async_context(world.raw(world.client_endpoint))
        two = await stack.enter_async_context(world.raw(world.worker_endpoint))
        worker = await stack.enter_async_context(world.worker("echo", echo))
        await worker.registered()
        for frames in noise:
            one.send(*frames)
            two.send(*frames)
        one.send(b"MDPC02", b"\x01", b"echo", b"plain body")
        reply = await one.receive()
        assert reply == [b"MDPC02", b"\x03", b"echo", b"plain body"]
        two.send(*mdp.Heartbeat().frames())
        assert await two.receive() == mdp.Disconnect().frames()
        assert broker.counters["malformed"] == 2 * len(noise)


async def test_plain_majordomo_peers_work_with_each_other(world):
    async with (
        world.broker(),
        world.raw(world.worker_endpoint) as worker,
        world.raw(world.client_endpoint) as client,
    ):
        worker.send(b"MDPW02", b"\x01", b"plain")
        client.send(b"MDPC02", b"\x01", b"plain", b"a", b"b")
        request = await worker.receive(skip=b"\x05")
        assert request[:2] == [b"MDPW02", b"\x02"]
        assert request[3:] == [b"", b"a", b"b"]
        worker.send(b"MDPW02", b"\x03", request[2], b"", b"part")
        worker.send(b"MDPW02", b"\x04", request[2], b"", b"end")
        assert await client.receive() == [b"MDPC02", b"\x02", b"plain", b"part"]
        assert await client.receive() == [b"MDPC02", b"\x03", b"plain", b"end"]


async def test_plain_and_our_peers_understand_each_other(world):
    async with world.broker(), world.client() as client, world.raw(world.worker_endpoint) as worker:
        worker.send(b"MDPW02", b"\x01", b"plain")
        asked = asyncio.create_task(client.request("plain", b"hello", timeout=5))
        request = await worker.receive(skip=b"\x05")
        assert request[3:] == [b"", b"hello"]
        worker.send(b"MDPW02", b"\x04", request[2], b"", b"hello back")
        assert await asked == [b"hello back"]


async def test_the_last_reply_of_a_worker_that_has_gone_counts_although_the_next_request_for_it_came_first(
    world,
):
    """The broker learns from that request that the worker is gone, when the worker's reply is still to be read."""
    async with world.broker() as broker, world.raw(world.client_endpoint) as client:
        client.send(b"MDPC02", b"\x01", b"mmi.service", b"last")
        await client.receive()
        for number in range(5):
            before = open_fds()
            service = b"last.%d" % number
            async with world.raw(world.worker_endpoint) as worker:
                worker.send(*mdp.Ready(service, 2, extended=True).frames())
                client.send(b"MDPC02", b"\x01", service, b"one")
                request = await worker.receive(skip=b"\x05")
                # The event loop runs again when the broker has both to read.
                client.send(b"MDPC02", b"\x01", service, b"two")
                worker.send(*mdp.WorkerFinal(request[2], [b"done"]).frames())
                worker.socket.close(linger=1000)
                limit = time.monotonic() + 10
                while open_fds() - before:
                    assert time.monotonic() < limit
            assert await client.receive() == [b"MDPC02", b"\x03", service, b"done"]
            await until(lambda: not broker.counters["workers"])


async def test_messages_of_a_slow_reader_are_kept_and_none_is_lost(world):
    """Far beyond the high-water marks; the reader begins when all has been sent."""
    parts = 12_000
    all_sent = asyncio.Event()

    async def send_parts(request):
        for number in range(parts):
            await request.partial(b"%06d" % number + b"x" * 500)
        all_sent.set()
        return [b"end"]

    async with world.broker() as broker, world.worker("stream", send_parts) as worker:
        await worker.registered()
        async with world.raw(world.client_endpoint) as client:
            client.send(b"MDPC02", b"\x01", b"stream", b"go")
            async with asyncio.timeout(20):
                await all_sent.wait()
            received = [(await client.receive())[3][:6] for _ in range(parts)]
            assert received == [b"%06d" % number for number in range(parts)]
            assert (await client.receive())[3] == b"end"
        assert broker.counters["slow_client_drops"] == 0


async def test_refusals_are_typed(world):
    limits = BrokerLimits(heartbeat=0.1, queue=1, body_bytes=10_000)
    async with world.broker(limits=limits), world.client() as client:
        with pytest.raises(TooLarge, match="10000 are allowed"):
            await client.request("nobody", b"x" * 15_000, timeout=5)
        first = asyncio.create_task(client.request("nobody", b"x", timeout=5))
        with pytest.raises(RequestQueueFull):
            await asyncio.gather(*(client.request("nobody", b"x", timeout=5) for _ in range(2)))
        first.cancel()


async def test_the_process_ends_in_order_on_sigterm(world):
    payload = BrokerSettings(
        client_endpoint=world.client_endpoint, worker_endpoint=world.worker_endpoint, limits=FAST
    ).encode()
    async with (
        process(run_broker, payload) as child,
        world.worker("echo", echo) as worker,
        world.client() as client,
    ):
        assert await client.request("echo", b"x", timeout=10) == [b"x"]
        os.kill(child.pid, signal.SIGTERM)
        await asyncio.to_thread(child.join, 10)
        assert child.exitcode == 0
        assert list(world.folder.iterdir()) == []
        assert not worker._connection or worker.conversations == 1


async def test_frames_beyond_the_copy_limit_are_forwarded_as_they_are(world):
    seen = []
    async with world.broker() as broker, world.worker("echo", echo), world.client() as client:
        send = broker._workers.send
        broker._workers.send = lambda frames: (seen.extend(map(type, frames)), send(frames))[1]
        await client.request("echo", b"x" * 100_000, timeout=5)
    assert zmq.Frame in seen
