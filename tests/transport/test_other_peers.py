"""Peers that others wrote, or that have no library at all, at a real broker with one socket, beside ours."""

from __future__ import annotations

import asyncio
import multiprocessing
from contextlib import asynccontextmanager

import majortomo
import pytest
import zmq

from transport.broker import Broker, BrokerSettings
from transport.broker_core import BrokerLimits
from transport.client import Client
from transport.sockets import DrainedSocket
from transport.worker import Worker

LIMIT = 20
spawn = multiprocessing.get_context("spawn")


def serve_with_majortomo(endpoint: str) -> None:
    worker = majortomo.Worker(endpoint, "theirs", heartbeat_interval=0.2)
    worker.connect()
    while True:
        address, frames = worker.wait_for_request()
        for number in range(int(frames[0])):
            worker.send_reply_partial(address, [b"part %d" % number])
        worker.send_reply_final(address, [b"end", *frames])


def serve_in_mdp_01(endpoint: str) -> None:
    worker = zmq.Context.instance().socket(zmq.DEALER)
    worker.connect(endpoint)
    worker.send_multipart([b"", b"MDPW01", b"\x01", b"theirs"])
    while True:
        if not worker.poll(200):
            worker.send_multipart([b"", b"MDPW01", b"\x04"])
            continue
        empty, header, command, *frames = worker.recv_multipart()
        assert (empty, header) == (b"", b"MDPW01")
        if command == b"\x02":
            address, empty, *body = frames
            assert empty == b""
            worker.send_multipart([b"", b"MDPW01", b"\x03", address, b"", b"end", *body])


def ask_with_majortomo(endpoint: str, service: str, body: bytes) -> list[list[bytes]]:
    with majortomo.Client(endpoint, zmq_linger=0) as client:
        client.send(service, body)
        return list(client.recv_all(timeout=LIMIT))


def ask_in_mdp_01(endpoint: str, service: str, body: bytes) -> list[list[bytes]]:
    with zmq.Context.instance().socket(zmq.REQ) as client:
        client.set(zmq.LINGER, 0)
        client.set(zmq.RCVTIMEO, LIMIT * 1000)
        client.connect(endpoint)
        client.send_multipart([b"MDPC01", service.encode(), body])
        header, name, *frames = client.recv_multipart()
        assert (header, name) == (b"MDPC01", service.encode())
        return [frames]


@asynccontextmanager
async def broker_with(tmp_path, serve, **limits):
    """The endpoint of a broker with the worker of others, and one of ours for `ours`."""
    settings = BrokerSettings(
        client_endpoint=f"ipc://{tmp_path}/b", worker_endpoint=None, limits=BrokerLimits(**limits)
    )
    async with Broker(settings) as broker, asyncio.timeout(60):
        assert broker.worker_endpoint == broker.client_endpoint
        process = spawn.Process(target=serve, args=(broker.client_endpoint,), daemon=True)
        process.start()
        try:
            async with Worker(broker.client_endpoint, "ours", _ours) as worker:
                await worker.registered()
                yield broker.client_endpoint
        finally:
            process.kill()
            process.join()


async def _ours(request):
    for number in range(int(request.body[0])):
        await request.partial(b"part %d" % number)
    return [b"end", *request.body]


PARTS = [[b"part 0"], [b"part 1"]]


@pytest.mark.parametrize("serve", [serve_with_majortomo, serve_in_mdp_01])
@pytest.mark.parametrize("ask", [ask_with_majortomo, ask_in_mdp_01])
async def test_clients_and_workers_of_others_and_ours(tmp_path, serve, ask):
    async with broker_with(tmp_path, serve) as endpoint:
        whole = [*PARTS, [b"end", b"2"]]
        alone = [[b"end", b"2"]]
        theirs = whole if serve is serve_with_majortomo else alone
        async with Client(endpoint) as client:
            parts = [part.body async for part in client.stream("theirs", b"2", idle_timeout=LIMIT)]
            assert parts == theirs
            assert await client.request("theirs", b"0", timeout=LIMIT) == [b"end", b"0"]
        as_asked = (theirs, whole) if ask is ask_with_majortomo else (alone, alone)
        found = [await asyncio.to_thread(ask, endpoint, service, b"2") for service in ("theirs", "ours")]
        assert found == [*as_asked]


async def test_a_worker_that_is_gone_is_lost_while_the_socket_that_it_shares_is_never_empty(
    tmp_path, monkeypatch
):
    """And before its heartbeats are missed."""
    async with (
        broker_with(tmp_path, serve_in_mdp_01, liveness=1000) as endpoint,
        Client(endpoint) as client,
        asyncio.timeout(LIMIT),
    ):
        with zmq.Context.instance().socket(zmq.DEALER) as mortal:
            mortal.set(zmq.LINGER, 0)
            mortal.connect(endpoint)
            mortal.send_multipart([b"MDPW02", b"\x01", b"mortal"])
            assert await asyncio.to_thread(mortal.poll, LIMIT * 1000)
            monkeypatch.setattr(DrainedSocket, "readable", property(lambda _: True))
        code = b"200"
        while code == b"200":
            [code] = await client.request("mmi.service", b"mortal", timeout=LIMIT)
        assert code == b"404"


async def test_a_worker_of_others_that_is_killed_loses_no_request(tmp_path):
    """Plain requests may be started again: the one that it had goes to the next worker."""
    async with broker_with(tmp_path, serve_in_mdp_01) as endpoint:
        with zmq.Context.instance().socket(zmq.DEALER) as silent:
            silent.set(zmq.LINGER, 0)
            silent.connect(endpoint)
            silent.send_multipart([b"", b"MDPW01", b"\x01", b"mortal"])
            asked = asyncio.create_task(asyncio.to_thread(ask_in_mdp_01, endpoint, "mortal", b"1"))
            request = None
            while request is None:
                assert await asyncio.to_thread(silent.poll, LIMIT * 1000)
                frames = silent.recv_multipart()
                request = frames if frames[2] == b"\x02" else None
        async with Worker(endpoint, "mortal", _ours):
            assert await asked == [[b"end", b"1"]]
