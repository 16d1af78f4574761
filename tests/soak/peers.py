"""The peers of a soak, each in a process of its own: a broker that listens with keys, its worker, and those that make it hard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import socket
import time

import zmq

from transport import broker
from transport.access import Access
from transport.envelope import SESSION_BYTES, RequestEnvelope
from transport.network.curve import KeyPair, Member, NetworkSettings
from transport.worker import Worker

SERVER, GOOD, OTHER = (KeyPair.of(secret * 8) for secret in ("11111", "22222", "33333"))
MEMBERS = (
    Member(name="good", role="viewer", public=GOOD.public),
    Member(name="other", role="viewer", public=OTHER.public),
)
SILENT = 500
"""Connections of strangers at once, which say nothing."""
GARBAGE = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\xff" + b"\0" * 8 + b"\x7f\x03\x00CURVE" + b"\0" * 47,
    b"\xff" + b"\0" * 8 + b"\x7f\x03\x00NULL" + b"\0" * 48,
    b"\x01\x00",
    bytes(range(256)),
)


def run_broker(folder: str, endpoint: str) -> None:
    settings = broker.BrokerSettings(
        client_endpoint=f"ipc://{folder}/clients",
        worker_endpoint=f"ipc://{folder}/workers",
        access=Access(public=frozenset({b"echo"}), stamped=frozenset({b"echo"})),
        network=NetworkSettings(endpoint=endpoint, pair=SERVER, members=MEMBERS),
    )
    asyncio.run(broker.main(settings.encode(), on_event=lambda *_, **__: None))


def run_worker(folder: str) -> None:
    async def same(request):
        return request.body

    async def serve() -> None:
        async with Worker(f"ipc://{folder}/workers", "echo", same, credit=64):
            await asyncio.Event().wait()

    asyncio.run(serve())


def _keyed(context, pair, endpoint, *, water=1000):
    peer = context.socket(zmq.DEALER)
    peer.set(zmq.LINGER, 0)
    peer.set(zmq.SNDHWM, water)
    peer.set(zmq.RCVHWM, water)
    peer.set(zmq.CURVE_SERVERKEY, SERVER.public.encode())
    peer.set(zmq.CURVE_PUBLICKEY, pair.public.encode())
    peer.set(zmq.CURVE_SECRETKEY, pair.secret.encode())
    peer.connect(endpoint)
    return peer


def _request(number, *, session, stream=False):
    envelope = RequestEnvelope(number, session, 20_000, False, stream)
    return [b"MDPC02", b"\x01", b"echo", envelope.frame(), b"x" * 100]


def run_flood(endpoint: str) -> None:
    """Eight connections of the other key, each with valid requests as fast as they are taken."""
    context, poller, number = zmq.Context(), zmq.Poller(), 0
    peers = {_keyed(context, OTHER, endpoint): os.urandom(SESSION_BYTES) for _ in range(8)}
    for peer in peers:
        poller.register(peer, zmq.POLLIN | zmq.POLLOUT)
    while True:
        for peer, events in poller.poll():
            if events & zmq.POLLIN:
                with contextlib.suppress(zmq.Again):
                    for _ in range(100):
                        peer.recv_multipart(zmq.DONTWAIT)
            if events & zmq.POLLOUT:
                number += 1
                with contextlib.suppress(zmq.Again):
                    peer.send_multipart(_request(number, session=peers[peer]), zmq.DONTWAIT)


def run_slow_reader(endpoint: str) -> None:
    """Asks and does not read: again and again, over a new connection each time."""
    context, number = zmq.Context(), 0
    while True:
        peer, session = _keyed(context, OTHER, endpoint, water=10), os.urandom(SESSION_BYTES)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            number += 1
            if peer.poll(20, zmq.POLLOUT):
                peer.send_multipart(_request(number, session=session))
        peer.close(linger=0)


def run_strangers(port: int) -> None:
    """Silent connections, garbage, other protocols, unknown keys."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context, dice, held = zmq.Context(), random.Random(5), []
    while True:
        with contextlib.suppress(OSError):
            one = socket.create_connection(("127.0.0.1", port), timeout=1)
            held.append(one)
            if dice.random() < 0.5:
                one.sendall(dice.choice(GARBAGE))
        if len(held) > SILENT:
            held.pop(dice.randrange(len(held))).close()
        if dice.random() < 0.02:
            unknown = _keyed(context, KeyPair.new(), f"tcp://127.0.0.1:{port}")
            unknown.send(b"x")
            time.sleep(0.01)
            unknown.close(linger=0)
        time.sleep(0.0005)
