"""The broker beside its floor: round trips of 100 bytes through our broker and through `zmq.proxy`, in one run.

The broker (or the proxy) has a process of its own, so have the load and the echo worker, which are blocking sockets
without any library of ours. The last rows are our own Client and Worker. `python benchmarks/bench_broker.py` takes about 15 s.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

import zmq
from support.rows import Row, table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from transport import broker, frames
from transport.client import Client
from transport.envelope import RequestEnvelope, identity
from transport.worker import Request, Worker

BODY = b"x" * 100
SESSION = b"s" * 16
SECONDS = 1.2
PEER = {"per_second": 910.0, "p50": 1.14, "p99": 1.42}
"""What palaestrAI 3.5.18 did, one at a time over tcp: measured elsewhere, here the least that is asked for."""
_spawn = multiprocessing.get_context("spawn")


def run_broker(payload: bytes) -> None:
    asyncio.run(broker.main(payload))


def run_proxy(front: str, back: str) -> None:
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.bind(front)
    dealer.bind(back)
    zmq.proxy(router, dealer)


def run_echo(endpoint: str, credit: int) -> None:
    """A worker in its shortest form: it echoes, in our broker's words or (credit 0) in none."""
    peer = zmq.Context().socket(zmq.REP if credit == 0 else zmq.DEALER)
    peer.connect(endpoint)
    if credit == 0:
        while True:
            peer.send_multipart(peer.recv_multipart())
    peer.send_multipart(frames.Ready(b"echo", credit, extended=True).frames())
    while True:
        if not peer.poll(1000):
            peer.send_multipart(frames.Heartbeat().frames())
            continue
        message = peer.recv_multipart()
        if message[1] == b"\x02":
            envelope = message[4]
            reply = envelope[:5] + b"\x02\0\0" + identity(envelope) + struct.pack("!I", 1)
            peer.send_multipart([b"MDPW02", b"\x04", message[2], b"", reply, message[5]])


async def _echo(request: Request) -> list[bytes]:
    return request.body


def run_library_worker(endpoint: str) -> None:
    async def serve() -> None:
        async with Worker(endpoint, "echo", _echo, credit=64):
            await asyncio.Event().wait()

    asyncio.run(serve())


def load(endpoint: str, in_flight: int, *, mdp: bool) -> list[float]:
    """Keep `in_flight` requests under way for `SECONDS`; returns each round trip in seconds."""
    context = zmq.Context()
    peer = context.socket(zmq.DEALER)
    peer.connect(endpoint)
    peer.set(zmq.RCVTIMEO, 10_000)
    begun: dict[int, float] = {}
    taken: list[float] = []
    number = 0

    def ask() -> None:
        nonlocal number
        number += 1
        begun[number] = time.perf_counter()
        if mdp:
            envelope = RequestEnvelope(number, SESSION, 10_000).frame()
            peer.send_multipart([b"MDPC02", b"\x01", b"echo", envelope, BODY])
        else:
            peer.send_multipart([b"", number.to_bytes(8, "big"), BODY])

    def hear() -> None:
        message = peer.recv_multipart()
        answered = int.from_bytes(message[3][8:16] if mdp else message[1], "big")
        taken.append(time.perf_counter() - begun.pop(answered))

    ask()
    hear()  # the first one waits for connections
    taken.clear()
    end = time.perf_counter() + SECONDS
    for _ in range(in_flight):
        ask()
    while time.perf_counter() < end:
        hear()
        ask()
    context.destroy(linger=0)
    return taken


async def library_load(endpoint: str, in_flight: int) -> list[float]:
    """As `load`, with our own Client."""
    taken: list[float] = []
    async with Client(endpoint) as client:
        # The broker may still count on a worker that has been killed: what waits for it goes to the next one.
        await client.request("echo", BODY, timeout=10, idempotent=True)
        end = time.perf_counter() + SECONDS

        async def one() -> None:
            while (begun := time.perf_counter()) < end:
                await client.request("echo", BODY, timeout=10)
                taken.append(time.perf_counter() - begun)

        await asyncio.gather(*(one() for _ in range(in_flight)))
    return taken


def _row(what: str, transport: str, in_flight: int, credit: int | None, taken: list[float]) -> dict[str, Any]:
    cuts = quantiles(taken, n=100)
    return {
        "what": what,
        "transport": transport,
        "in_flight": in_flight,
        "credit": credit,
        "per_second": round(len(taken) / SECONDS),
        "p50_us": round(cuts[49] * 1e6),
        "p99_us": round(cuts[98] * 1e6),
    }


def _endpoints(transport: str, folder: str, name: str) -> tuple[str, str]:
    if transport == "ipc":
        return f"ipc://{folder}/{name}.front", f"ipc://{folder}/{name}.back"
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{one.getsockname()[1]}", f"tcp://127.0.0.1:{two.getsockname()[1]}"


class _Processes:
    """Processes that are ended with the block."""

    def __init__(self, *started: Any) -> None:
        self._started = started

    def __enter__(self) -> None:
        for process in self._started:
            process.start()

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()
            process.join()


def _process(target: Any, *arguments: Any) -> Any:
    return _spawn.Process(target=target, args=arguments, daemon=True)


def measure() -> list[dict[str, Any]]:
    """One dict a row: what, transport, in_flight, credit, per_second, p50_us, p99_us."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for transport in ("ipc", "tcp"):
            front, back = _endpoints(transport, folder, "proxy")
            with _Processes(_process(run_proxy, front, back), _process(run_echo, back, 0)):
                for in_flight in (1, 64):
                    taken = load(front, in_flight, mdp=False)
                    rows.append(_row("zmq.proxy (floor)", transport, in_flight, None, taken))
            front, back = _endpoints(transport, folder, "broker")
            payload = broker.BrokerSettings(client_endpoint=front, worker_endpoint=back).encode()
            with _Processes(_process(run_broker, payload)):
                for credit, loads in ((1, (1, 64)), (64, (64,))):
                    with _Processes(_process(run_echo, back, credit)):
                        for in_flight in loads:
                            taken = load(front, in_flight, mdp=True)
                            rows.append(_row("broker", transport, in_flight, credit, taken))
                if transport == "ipc":
                    with _Processes(_process(run_library_worker, back)):
                        for in_flight in (1, 64):
                            taken = asyncio.run(library_load(front, in_flight))
                            rows.append(
                                _row("broker, our Client and Worker", transport, in_flight, 64, taken)
                            )
    return rows


def rows() -> list[Row]:
    """As `measure`, one figure a row, each beside the floor of its own run."""
    measured = measure()
    floor = {
        (row["transport"], row["in_flight"]): row["per_second"] for row in measured if row["credit"] is None
    }
    found: list[Row] = []
    for row in measured:
        transport, in_flight, credit = row["transport"], row["in_flight"], row["credit"]
        what = f"{row['what']}, {transport}, {in_flight} in flight" + (f", credit {credit}" if credit else "")
        share = (
            "" if credit is None else f"; {row['per_second'] / floor[transport, in_flight]:.2f} of the floor"
        )
        note = f"p50 {row['p50_us']} µs, p99 {row['p99_us']} µs{share}"
        peer = PEER if (row["what"], transport, in_flight) == ("broker", "tcp", 1) else None
        found.append(
            Row(
                what=what,
                figure=row["per_second"],
                unit="req/s",
                peer=f"{peer['per_second']:.0f} req/s" if peer else "",
                at_least=peer["per_second"] if peer else None,
                note=note,
            )
        )
        if peer:
            found += [
                Row(
                    what=f"{what}: {cut}",
                    figure=row[f"{cut}_us"] / 1000,
                    unit="ms",
                    peer=f"{peer[cut]} ms",
                    at_most=peer[cut],
                )
                for cut in ("p50", "p99")
            ]
    return found


if __name__ == "__main__":
    print(table(rows()))
