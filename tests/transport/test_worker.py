from __future__ import annotations

import asyncio
import time

import pytest
import zmq
from conftest_peers import echo, process, run_hanging_worker, run_short_lived_worker, spawn, until

from transport import frames as mdp
from transport.broker_core import BrokerLimits
from transport.errors import WorkerLost


async def test_the_handler_sees_what_was_asked(house):
    seen = []

    async def look(request):
        seen.append((request.body, request.envelope))
        return []

    async with house.broker(), house.client() as client, house.worker("look", look):
        await client.request("look", b"a", b"", timeout=5, idempotent=True)
        (body, envelope) = seen.pop()
        assert body == [b"a", b""]
        assert envelope.idempotent
        assert envelope.session == client.session
        assert 4 < envelope.remaining <= 5
        assert [part.final async for part in client.stream("look", idle_timeout=5)] == [True]
        assert seen.pop()[1].remaining is None
        async with house.raw(house.client_endpoint) as plain:
            plain.send(b"MDPC02", b"\x01", b"look", b"plain")
            assert (await plain.receive())[3:] == [b""]
        assert seen.pop() == ([b"plain"], None)


async def test_as_many_handlers_at_once_as_credit(house):
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

    async with house.broker(), house.client() as client, house.worker("gate", gate, credit=3):
        await asyncio.gather(*(client.request("gate", b"%d" % number, timeout=5) for number in range(9)))
    assert most == 3


async def test_a_worker_that_is_told_off_comes_back_on_a_new_socket(house):
    async with house.broker() as broker, house.worker("echo", echo) as worker, house.client() as client:
        await worker.registered()
        (routing_id,) = broker._core._workers
        worker._send(mdp.WorkerFinal(b"of nothing", [b"x"]).frames())
        await until(lambda: worker.conversations == 2)
        assert await client.request("echo", b"again", timeout=5) == [b"again"]
        assert routing_id not in broker._core._workers


async def test_a_worker_without_a_sign_of_the_broker_begins_anew(house):
    """A ROUTER that never says anything: the worker hears no heartbeat and opens a new conversation."""
    router = house.context.socket(zmq.ROUTER)
    router.set(zmq.LINGER, 0)
    router.bind(house.worker_endpoint)
    peers = set()
    async with house.worker("echo", echo):
        async with asyncio.timeout(10):
            while len(peers) < 2:
                assert await asyncio.to_thread(router.poll, 5000)
                frames = router.recv_multipart()
                if frames[2] == b"\x01":
                    peers.add(frames[0])
    router.close()
    (house.folder / "workers.sock").unlink()


async def test_handlers_are_cancelled_at_the_end_and_their_clients_told(house):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang(request):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with house.broker(), house.client() as client:
        async with house.worker("slow", hang) as worker:
            asked = asyncio.create_task(client.request("slow", timeout=30))
            await begun.wait()
        assert ended.is_set()
        with pytest.raises(WorkerLost):
            await asked
        await worker.aclose()


async def test_a_killed_worker_process_is_noticed_at_once(house):
    """SIGKILL: the idempotent request goes to the next worker, the other one is told, both long before a heartbeat."""
    started = spawn.SimpleQueue()
    slow = BrokerLimits(heartbeat=60.0)
    async with house.broker(limits=slow) as broker, house.client() as client:
        async with process(run_hanging_worker, house.worker_endpoint, started, 60.0) as child:
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
        async with house.worker("slow", echo):
            assert await safe == [b"safe"]
        assert broker.counters["requeued"] == 1
    started.close()


async def test_what_was_answered_last_arrives(house):
    async with (
        house.broker(),
        house.client() as client,
        process(run_short_lived_worker, house.worker_endpoint),
    ):
        (body,) = await client.request("last", timeout=20)
        assert len(body) == 20_000_000


async def test_a_request_that_comes_again_finds_its_running_handler(house):
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

    async with house.client() as client, house.worker("once", once, credit=2) as worker:
        async with house.broker():
            asked = asyncio.create_task(client.request("once", timeout=20, idempotent=True))
            await begun.wait()
        async with house.broker() as second:
            await until(lambda: second.counters["dispatched"])
            await client.request("once", b"sent behind it", timeout=20)
            go_on.set()
            assert await asked == [b"the only one"]
    assert (calls, worker.conversations) == (1, 2)


def test_credit_is_checked(house):
    with pytest.raises(ValueError, match="credit"):
        house.worker("echo", echo, credit=0)
