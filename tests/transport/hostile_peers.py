"""Peers that flood, hold and die, and those that they are aimed at; targets of child processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time

import zmq

from transport import broker as broker_module
from transport.broker import Broker, BrokerSettings
from transport.client import Client
from transport.worker import Worker

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)
READY = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"


async def _busy(blocked, release) -> None:
    """Hold up the loop, as anything may, until the test goes on."""
    blocked.set()
    release.wait(60)


def run_busy_broker(client_endpoint: str, worker_endpoint: str, blocked, release) -> None:
    async def serve() -> None:
        async with Broker(BrokerSettings(client_endpoint=client_endpoint, worker_endpoint=worker_endpoint)):
            await _busy(blocked, release)
            await asyncio.Event().wait()

    asyncio.run(serve())


def run_busy_client(endpoint: str, blocked, release) -> None:
    async def ask() -> None:
        async with Client(endpoint) as client:
            asked = asyncio.create_task(client.request("echo", b"x", timeout=60))
            while not client.connected:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
            await _busy(blocked, release)
            asked.cancel()

    asyncio.run(ask())


def run_busy_worker(endpoint: str, blocked, release) -> None:
    async def serve() -> None:
        async def nothing(_request):
            return []

        async with Worker(endpoint, "echo", nothing) as worker:
            await worker.registered()
            await _busy(blocked, release)

    asyncio.run(serve())


def fill(endpoint: str, blocked, full) -> None:
    """Send to a broker that is busy until it takes no more, and stay."""
    peer = zmq.Context().socket(zmq.DEALER)
    peer.set(zmq.SNDHWM, 1)
    peer.connect(endpoint)
    blocked.wait(60)
    _send_until_full(peer, [b"MDPC02", b"\x01", b"mmi.service", b"echo"])
    full.set()
    time.sleep(60)


def fill_from_the_broker(endpoint: str, blocked, full) -> None:
    """As a broker, do the same to the one peer that comes."""
    router = zmq.Context().socket(zmq.ROUTER)
    router.set(zmq.ROUTER_MANDATORY, 1)
    router.set(zmq.SNDHWM, 1)
    router.bind(endpoint)
    peer = router.recv_multipart()[0]
    router.send_multipart([peer, b"MDPW02", b"\x05"])
    blocked.wait(60)
    _send_until_full(router, [peer, b"MDPW02", b"\x05"])
    full.set()
    time.sleep(60)


def _send_until_full(peer: zmq.Socket, message: list[bytes]) -> None:
    peer.set(zmq.SNDTIMEO, 1000)
    sent = 0
    try:
        while True:
            peer.send_multipart(message)
            sent += 1
    except zmq.Again:
        if sent < 1000:
            raise


def run_flood(endpoint: str) -> None:
    """Send what is no command, as fast as it goes, for ever."""
    peer = zmq.Context().socket(zmq.DEALER)
    peer.connect(endpoint)
    while True:
        peer.send(b"")


def run_deadly_worker(endpoint: str, ready) -> None:
    """A worker that every request kills."""

    async def serve() -> None:
        async def die(_request):
            os._exit(9)

        async with Worker(endpoint, "deadly", die) as worker:
            await worker.registered()
            ready.release()
            await asyncio.Event().wait()

    asyncio.run(serve())


def run_broker_with_files(payload: bytes, files: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    asyncio.run(broker_module.main(payload))


def hold_connections(path: str, wanted: int, opened) -> None:
    """Open connections that shake hands, and keep them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = []
    for _ in range(wanted):
        with contextlib.suppress(ConnectionError):  # it was refused
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            held.append(peer)
            peer.connect(path)
            peer.sendall(GREETING + READY)
    opened.set()
    time.sleep(60)
