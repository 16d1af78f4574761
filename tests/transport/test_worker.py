from __future__ import annotations

import asyncio
import math
import time

import pytest
import zmq

from tests.transport.conftest_peers import (
    echo,
    process,
    run_hanging_worker,
    run_short_lived_worker,
    spawn,
    until,
)
from transport import frames as mdp
from transport.broker_core import BrokerLimits
from transport.errors import RemoteError, WorkerLost
from transport.sockets import Sent
from transport.worker import Worker


async def test_the_handler_gets_the_request(world):
    seen = []

    async def look(request):
        seen.append((request.body, request.stream, request.key))
        return []

    async with world.broker(), world.client() as client, world.worker("look", look):
        await client.request("look", b"a", b"", timeout=5, idempotent=True)
        assert seen.pop() == ([b"a", b""], False, (1, client.session))
        assert [part.final async for part in client.stream("look", idle_timeout=5)] == [True]
        assert seen.pop() == ([], True, (2, client.session))
        async with world.raw(world.client_endpoint) as plain:
            plain.send(b"MDPC02", b"\x01", b"look", b"plain")
            assert (await plain.receive())[3:] == [b""]
        assert seen.pop() == ([b"plain"], False, None)


async def test_as_many_handlers_at_once_as_credit(world):
    running, most = 0, 0
    full = asyncio.Event()

    async def gate(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()
        running -= 1
        return request.body

    async with world.broker(), world.client() as client, world.worker("gate", gate, credit=3):
        await asyncio.gather(*(client.request("gate", b"%d" % number, timeout=5) for number in range(9)))
    assert most == 3


async def test_a_disconnected_worker_reconnects_on_a_new_socket(world):
    async with world.broker() as broker, world.worker("echo", echo) as worker, world.client() as client:
        await worker.registered()
        (routing_id,) = broker._core._workers
        worker._send(mdp.WorkerFinal(b"of nothing", [b"x"]).frames())
        await until(lambda: worker.conversations == 2)
        assert await client.request("echo", b"again", timeout=5) == [b"again"]
        assert routing_id not in broker._core._workers


async def test_a_worker_without_a_sign_of_the_broker_begins_anew(world):
    """A ROUTER that never says anything: the worker hears no heartbeat and opens a new conversation."""
    router = world.context.socket(zmq.ROUTER)
    router.set(zmq.LINGER, 0)
    router.bind(world.worker_endpoint)
    peers = set()
    async with world.worker("echo", echo):
        async with asyncio.timeout(10):
            while len(peers) < 2:
                assert await asyncio.to_thread(router.poll, 5000)
                frames = router.recv_multipart()
                if frames[2] == b"\x01":
                    peers.add(frames[0])
    router.close()
    (world.folder / "workers.sock").unlink()


async def test_handlers_are_cancelled_at_the_end_and_their_clients_get_an_error(world):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang(request):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with world.broker(), world.client() as client:
        async with world.worker("slow", hang) as worker:
            asked = asyncio.create_task(client.request("slow", timeout=30))
            await begun.wait()
        assert ended.is_set()
        with pytest.raises(WorkerLost):
            await asked
        await worker.aclose()


async def test_a_killed_worker_process_is_noticed_at_once(world):
    """SIGKILL: the idempotent request goes to the next worker, the other one is told, both long before a heartbeat."""
    started = spawn.SimpleQueue()
    slow = BrokerLimits(heartbeat=60.0)
    async with world.broker(limits=slow) as broker, world.client() as client:
        async with process(run_hanging_worker, world.worker_endpoint, started, 60.0) as child:
            safe = asyncio.create_task(client.request("slow", b"safe", timeout=20, idempotent=True))
            unsafe = asyncio.create_task(client.request("slow", b"unsafe", timeout=20))
            begun = {await asyncio.to_thread(started.get) for _ in range(2)}
            assert begun == {b"safe", b"unsafe"}
            child.kill()
            killed = time.monotonic()
            with pytest.raises(WorkerLost):
                await unsafe
            assert time.monotonic() - killed < 2
            assert not safe.done()
        async with world.worker("slow", echo):
            assert await safe == [b"safe"]
        assert broker.counters["requeued"] == 1
    started.close()


async def test_the_last_reply_arrives(world):
    async with (
        world.broker(limits=BrokerLimits(service_wait=60)),
        world.client() as client,
        process(run_short_lived_worker, world.worker_endpoint),
    ):
        (body,) = await client.request("last", timeout=60)
        assert len(body) == 20_000_000


async def test_a_request_that_comes_again_finds_its_running_handler(world):
    """The broker goes and comes back; the idempotent request is sent again, and its work is not done twice."""
    begun, calls = asyncio.Event(), 0
    go_on = asyncio.Event()

    async def once(request):
        nonlocal calls
        if request.body:
            return request.body
        calls += 1
        begun.set()
        await go_on.wait()
        return [b"the only one"]

    async with world.client() as client, world.worker("once", once, credit=2) as worker:
        async with world.broker():
            asked = asyncio.create_task(client.request("once", timeout=20, idempotent=True))
            await begun.wait()
        async with world.broker() as second:
            await until(lambda: second.counters["dispatched"])
            await client.request("once", b"sent behind it", timeout=20)
            go_on.set()
            assert await asked == [b"the only one"]
    assert (calls, worker.conversations) == (1, 2)


@pytest.mark.parametrize("credit", [0, 1.5, 10**9])
def test_credit_is_checked(world, credit):
    with pytest.raises(ValueError, match="credit"):
        world.worker("echo", echo, credit=credit)


@pytest.mark.parametrize("seconds", [0, -1.0, math.inf, math.nan])
def test_a_heartbeat_takes_time(world, seconds):
    with pytest.raises(ValueError, match="heartbeat"):
        Worker(world.worker_endpoint, "echo", echo, heartbeat=seconds)


def test_a_handler_can_be_called(world):
    with pytest.raises(TypeError, match="handler"):
        world.worker("echo", None)


async def test_a_part_behind_the_final_is_dropped_and_costs_nobody_else(world):
    late, told = asyncio.Event(), asyncio.Event()
    tasks = []

    async def tell_late(request):
        await late.wait()
        await request.partial(b"too late")
        told.set()

    async def serve(request):
        if request.body == [b"slow"]:
            late.set()
            await told.wait()
        else:
            tasks.append(asyncio.create_task(tell_late(request)))
        return request.body

    async with (
        world.broker() as broker,
        world.client() as client,
        world.worker("s", serve, credit=2) as worker,
    ):
        assert await client.request("s", b"quick", timeout=20) == [b"quick"]
        assert await client.request("s", b"slow", timeout=20) == [b"slow"]
        await asyncio.gather(*tasks)
        assert (worker.conversations, broker.counters["workers_lost"]) == (1, 0)


async def test_a_part_that_waits_for_room_is_not_sent_after_the_final(world, monkeypatch):
    tasks = []

    async def serve(request):
        connection, has_room = worker._connection, False
        send = connection.send
        monkeypatch.setattr(connection, "send", lambda frames: send(frames) if has_room else Sent.FULL)
        tasks.append(asyncio.create_task(request.partial(b"part")))
        await asyncio.sleep(0)  # it waits now
        has_room = True
        worker._writable.set()
        return request.body

    async with world.broker() as broker, world.client() as client, world.worker("s", serve) as worker:
        assert await client.request("s", b"x", timeout=20) == [b"x"]
        await asyncio.gather(*tasks)
        assert await client.request("s", b"y", timeout=20) == [b"y"]
        assert (worker.conversations, broker.counters["unexpected"]) == (1, 0)


class Mute(Exception):
    def __str__(self):
        raise ValueError("no text")


@pytest.mark.parametrize("name", ["Mute", "CancelledError"])
async def test_every_request_is_answered_with_the_error_of_its_handler(world, name):
    async def fail(request):
        if name == "Mute":
            raise Mute
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    async with world.broker(), world.client() as client, world.worker("fail", fail):
        with pytest.raises(RemoteError) as caught:
            await client.request("fail", timeout=20)
    assert caught.value.type_name == name
