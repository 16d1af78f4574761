"""Brokers and echo workers in processes of their own, and a load for them: plain sockets, without any library of ours.

Words of a peer: `proxy` has none, `rfc18` is MDP/0.2 with one request at a time, `credit` the same with our envelope and a credit of 64, `rfc7`
is MDP/0.1. What is sent: a number of 8 bytes, and the body; both come back.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import select
import sys
import time
from collections import deque
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Self

import psutil
import zmq
import zmq.asyncio
from zmq.backend import Socket as PlainSocket

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from transport import broker
from transport.envelope import RequestEnvelope, identity
from transport.frames import Ready
from transport.network.curve import KeyPair, Member, NetworkSettings
from transport.worker import Request, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SESSION = b"s" * 16
CREDIT = 64
FEW = 16
SERVER, _PAIR = (KeyPair.of(secret * 8) for secret in ("11111", "22222"))
CLIENT = Member(name="load", role="operator", public=_PAIR.public)
_MORE = int(zmq.SNDMORE)
_spawn = multiprocessing.get_context("spawn")


class Served:
    """Processes that are ended with the block; CPU seconds of those that serve, since the last look."""

    def __init__(self, *targets: tuple[Callable[..., None], tuple[Any, ...]]) -> None:
        self._processes = [
            _spawn.Process(target=target, args=arguments, daemon=True) for target, arguments in targets
        ]

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def cpu(self, index: int) -> float:
        """Seconds of the process at this place until now."""
        times = psutil.Process(self._processes[index].pid).cpu_times()
        return float(times.user + times.system)


# -- brokers ------------------------------------------------------------------------------------------------


def ours(endpoint: str) -> None:
    """One socket for clients and workers, as all of these."""
    asyncio.run(broker.main(broker.BrokerSettings(client_endpoint=endpoint, worker_endpoint=None).encode()))


def keyed(clients: str, workers: str) -> None:
    networked(clients, workers, keyed=True)


def networked(clients: str, workers: str, *, keyed: bool = False) -> None:
    """Workers on this machine, and clients that come over tcp: with keys, or without."""
    network = NetworkSettings(endpoint=clients, pair=SERVER, members=(CLIENT,)) if keyed else None
    settings = broker.BrokerSettings(
        client_endpoint=f"{workers}.clients" if keyed else clients, worker_endpoint=workers, network=network
    )
    asyncio.run(broker.main(settings.encode()))


def proxy(front: str, back: str) -> None:
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.bind(front)
    dealer.bind(back)
    zmq.proxy(router, dealer)


def naive(endpoint: str) -> None:
    """MDP/0.2 as one writes it with zmq.asyncio in an hour: no limits, no heartbeats, no queue of a client."""

    async def serve() -> None:
        router = zmq.asyncio.Context().socket(zmq.ROUTER)
        router.bind(endpoint)
        waiting: dict[bytes, deque[bytes]] = {}
        queues: dict[bytes, deque[tuple[bytes, list[bytes]]]] = {}
        service_of: dict[bytes, bytes] = {}
        while True:
            peer, header, command, *frames = await router.recv_multipart()
            if header == b"MDPC02":
                service = frames[0]
                queues.setdefault(service, deque()).append((peer, frames[1:]))
            elif command == b"\x01":
                service = service_of[peer] = frames[0]
                waiting.setdefault(service, deque()).append(peer)
            elif command == b"\x04":
                service = service_of[peer]
                client, _, *body = frames
                await router.send_multipart([client, b"MDPC02", b"\x03", service, *body])
                waiting[service].append(peer)
            else:
                continue
            queue, workers = queues.get(service), waiting.get(service)
            while queue and workers:
                client, body = queue.popleft()
                await router.send_multipart([workers.popleft(), b"MDPW02", b"\x02", client, b"", *body])

    asyncio.run(serve())


def forwarder(endpoint: str) -> None:
    """MDP/0.2 with the least that a broker in Python can do, to see what is left for rules: it forwards, in a loop that blocks, by the
    methods of pyzmq's C class, as ours does. No services, credits, heartbeats, limits.
    """
    router = zmq.Context().socket(zmq.ROUTER)
    router.bind(endpoint)
    workers: deque[bytes] = deque()
    held: list[list[bytes]] = []
    while True:
        frames = []
        frame = PlainSocket.recv(router, 0, False)
        frames.append(frame.bytes)
        while frame.more:
            frame = PlainSocket.recv(router, 0, False)
            frames.append(frame.bytes)
        peer, header, command, *rest = frames
        if header == b"MDPC02":
            held.append([b"MDPW02", b"\x02", peer, b"", *rest[1:]])
        elif command == b"\x01":
            workers.append(peer)
        elif command == b"\x04":
            _forward(router, [rest[0], b"MDPC02", b"\x03", b"echo", *rest[2:]])
        while held and workers:
            _forward(router, [workers[0], *held.pop(0)])
            workers.rotate()


def _forward(router: zmq.Socket[bytes], frames: list[bytes]) -> None:
    for frame in frames[:-1]:
        PlainSocket.send(router, frame, _MORE)
    PlainSocket.send(router, frames[-1], 0)


def guide(endpoint: str, folder: str) -> None:
    """The ZeroMQ guide's Python broker (MDP/0.1), from a checkout of the guide."""
    sys.path.insert(0, f"{folder}/examples/Python")
    os.chdir(f"{folder}/examples/Python")
    from mdbroker import MajorDomoBroker  # it is only where the guide is

    made = MajorDomoBroker(False)
    made.bind(endpoint)
    made.mediate()


# -- workers ------------------------------------------------------------------------------------------------


class Peers:
    """Sockets of one process. What it costs to wait for many does not depend on their number, as it would with `zmq.Poller`."""

    def __init__(self, sockets: Iterable[zmq.Socket[bytes]]) -> None:
        self.all = list(sockets)
        self.touched = set(self.all)
        """Those that were sent to since: that may have taken the edge by which a message is announced."""
        self._poller, self._epoll = zmq.Poller(), select.epoll()
        self._by_descriptor = {socket.fileno(): socket for socket in self.all}
        for descriptor, socket in self._by_descriptor.items():
            self._poller.register(socket, zmq.POLLIN)
            self._epoll.register(descriptor, select.EPOLLIN)

    def readable(self, seconds: float) -> Iterator[zmq.Socket[bytes]]:
        """Each one once for each message that it has, which is received meanwhile; of a few sockets, once."""
        if len(self.all) <= FEW:
            yield from dict(self._poller.poll(int(1000 * seconds)))
            return
        announced = self._epoll.poll(0 if self.touched else seconds)
        found = {self._by_descriptor[one] for one, _ in announced} | self.touched
        self.touched = set()
        for socket in found:
            while int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
                yield socket


def echo(endpoint: str, words: str, number: int) -> None:
    """So many workers in one process, each with a socket of its own."""
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, number + 10)
    sockets = [context.socket(zmq.REP if words == "proxy" else zmq.DEALER) for _ in range(number)]
    for socket in sockets:
        socket.connect(endpoint)
        if words == "rfc7":
            socket.send_multipart([b"", b"MDPW01", b"\x01", b"echo"])
        elif words != "proxy":
            ready = Ready(b"echo", CREDIT, extended=True) if words == "credit" else Ready(b"echo")
            socket.send_multipart(ready.frames())
    heartbeat = [b"", b"MDPW01", b"\x04"] if words == "rfc7" else [b"MDPW02", b"\x05"]
    peers, beaten = Peers(sockets), time.monotonic()
    while True:
        for socket in peers.readable(0.5):
            _answer(socket, words)
        if words != "proxy" and time.monotonic() > beaten + 0.5:
            beaten = time.monotonic()
            for socket in sockets:
                socket.send_multipart(heartbeat)
            peers.touched |= set(sockets)


def _answer(socket: zmq.Socket[bytes], words: str) -> None:
    frames = socket.recv_multipart(copy=False)
    if words == "proxy":
        socket.send_multipart(frames, copy=False)
    elif words == "rfc7" and frames[2].bytes == b"\x02":
        socket.send_multipart([b"", b"MDPW01", b"\x03", *frames[3:]], copy=False)
    elif words == "rfc18" and frames[1].bytes == b"\x02":
        socket.send_multipart([b"MDPW02", b"\x04", *frames[2:]], copy=False)
    elif words == "credit" and frames[1].bytes == b"\x02":
        asked = frames[4].bytes
        reply = asked[:5] + b"\x02\0\0" + identity(asked) + b"\0\0\0\x01"
        socket.send_multipart([b"MDPW02", b"\x04", frames[2], b"", reply, *frames[5:]], copy=False)


async def _same(request: Request) -> list[bytes]:
    return request.body


def library_worker(endpoint: str) -> None:
    async def serve() -> None:
        async with Worker(endpoint, "echo", _same, credit=CREDIT):
            await asyncio.Event().wait()

    asyncio.run(serve())


# -- load ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """Round trips, in seconds, and how long they took together."""

    taken: list[float]
    seconds: float

    @property
    def rate(self) -> float:
        return len(self.taken) / self.seconds

    @property
    def p50(self) -> float:
        return median(self.taken)


def _connected(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, *, keyed: bool) -> zmq.Socket[bytes]:
    peer = context.socket(zmq.DEALER)
    if keyed:
        peer.set(zmq.CURVE_SERVERKEY, SERVER.public.encode())
        peer.set(zmq.CURVE_PUBLICKEY, _PAIR.public.encode())
        peer.set(zmq.CURVE_SECRETKEY, _PAIR.secret.encode())
    peer.connect(endpoint)
    peer.set(zmq.RCVTIMEO, 20_000)
    return peer


def load(
    endpoint: str,
    words: str,
    *,
    in_flight: int,
    body: bytes,
    seconds: float,
    keyed: bool = False,
    clients: int = 1,
    on_begin: Callable[[], None] = lambda: None,
) -> Load:
    """Keeps `in_flight` requests under way; the clients take turns. `on_begin` is called once all are connected."""
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, clients + 10)
    peers = Peers(_connected(context, endpoint, keyed=keyed) for _ in range(clients))
    turns = cycle(peers.all)
    begun: dict[bytes, float] = {}
    taken: list[float] = []
    count = 0
    at = {"proxy": 1, "rfc18": 3, "rfc7": 3, "credit": 4}[words]

    def ask() -> None:
        nonlocal count
        count += 1
        number = count.to_bytes(8, "big")
        head = {
            "proxy": [b""],
            "rfc18": [b"MDPC02", b"\x01", b"echo"],
            "rfc7": [b"", b"MDPC01", b"echo"],
            "credit": [b"MDPC02", b"\x01", b"echo", RequestEnvelope(count, SESSION, 20_000).frame()],
        }[words]
        begun[number] = time.perf_counter()
        peer = next(turns)
        peer.send_multipart([*head, number, body], copy=len(body) < 65_536)
        peers.touched.add(peer)

    def hear() -> Iterator[None]:
        for peer in peers.all if clients == 1 else peers.readable(20):
            frames = peer.recv_multipart(copy=False)
            taken.append(time.perf_counter() - begun.pop(frames[at].bytes))
            yield

    for _ in range(clients):
        ask()
        while begun:
            deque(hear(), 0)  # the first one waits for connections
    taken.clear()
    on_begin()
    began = time.perf_counter()
    end = began + seconds
    for _ in range(in_flight):
        ask()
    while begun:
        for _ in hear():
            if time.perf_counter() < end:
                ask()
    whole = time.perf_counter() - began
    context.destroy(linger=0)
    return Load(taken, whole)
