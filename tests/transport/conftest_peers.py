"""Real brokers, clients and workers for the tests; child processes import their targets from here."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from transport import broker as broker_module
from transport.broker import Broker, BrokerSettings
from transport.broker_core import BrokerLimits
from transport.client import Client
from transport.connection import flush_closed
from transport.worker import Worker

FAST = BrokerLimits(heartbeat=0.1, liveness=4, service_wait=2.0)
spawn = multiprocessing.get_context("spawn")


def open_fds() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(f"{link.name} {link.readlink()}")
    return found


async def until(condition) -> None:
    """Wait for what has no event of its own to wait for."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - that is what this is
            await asyncio.sleep(0.005)


@dataclass
class TransportWorld:
    """One broker's surroundings: a folder for its sockets and a ZeroMQ context for all peers."""

    folder: Path
    context: zmq.Context
    events: list[str] = field(default_factory=list)

    @property
    def client_endpoint(self) -> str:
        return f"ipc://{self.folder}/broker.sock"

    @property
    def worker_endpoint(self) -> str:
        return f"ipc://{self.folder}/workers.sock"

    def broker(self, *, limits: BrokerLimits = FAST, tcp: bool = False) -> Broker:
        settings = BrokerSettings(
            client_endpoint="tcp://127.0.0.1:*" if tcp else self.client_endpoint,
            worker_endpoint="tcp://127.0.0.1:*" if tcp else self.worker_endpoint,
            limits=limits,
        )
        return Broker(settings, on_event=lambda name, **_: self.events.append(name))

    def client(self, endpoint: str | None = None) -> Client:
        return Client(endpoint or self.client_endpoint, context=self.context)

    def worker(self, service, handler, credit=1, *, endpoint: str | None = None, **options) -> Worker:
        at = endpoint or self.worker_endpoint
        return Worker(at, service, handler, credit, heartbeat=0.1, context=self.context, **options)

    @asynccontextmanager
    async def raw(self, endpoint: str):
        """A bare DEALER with awaitable `send` and `receive`, as any other program's peer would be."""
        socket = self.context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.connect(endpoint)
        try:
            yield RawPeer(socket)
        finally:
            socket.close()


class RawPeer:
    def __init__(self, socket: zmq.Socket) -> None:
        self.socket = socket

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(list(frames))

    async def receive(self, *, skip: bytes | None = None) -> list[bytes]:
        """The next message whose second frame is not `skip`; TimeoutError when there is none."""
        while True:
            if not await asyncio.to_thread(self.socket.poll, 5000):
                raise TimeoutError
            frames = self.socket.recv_multipart()
            if skip is None or frames[1] != skip:
                return frames


async def echo(request):
    return request.body


def run_broker(payload: bytes) -> None:
    asyncio.run(broker_module.main(payload))


def run_hanging_worker(endpoint: str, started, heartbeat: float) -> None:
    """A worker process whose handler tells that it has begun, and never ends."""

    async def hang(request):
        started.put(request.body[0])
        await asyncio.Event().wait()

    async def serve() -> None:
        async with Worker(endpoint, "slow", hang, credit=8, heartbeat=heartbeat):
            await asyncio.Event().wait()

    asyncio.run(serve())


def run_short_lived_worker(endpoint: str) -> None:
    """A worker process that answers once, with much, and is gone at once."""

    async def serve() -> None:
        asked = asyncio.Event()

        async def answer_and_end(request):
            asked.set()
            return [b"x" * 20_000_000]

        async with Worker(endpoint, "last", answer_and_end):
            await asked.wait()
        await flush_closed(timeout=10)
        os._exit(0)

    asyncio.run(serve())


@asynccontextmanager
async def process(target, *arguments):
    started = spawn.Process(target=target, args=arguments, daemon=True)
    await asyncio.to_thread(started.start)
    try:
        yield started
    finally:
        started.kill()
        await asyncio.to_thread(started.join)
        started.close()
