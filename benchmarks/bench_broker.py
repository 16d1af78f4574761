"""The broker beside its floor and its peers, taking turns in one run: `zmq.proxy`, a naive broker on zmq.asyncio, and, where the environment
variable ZGUIDE names a checkout of the ZeroMQ guide (`booksbyus/zguide`), its Python broker. `python benchmarks/bench_broker.py` takes about a minute.

Brokers, workers and load have processes of their own; all but the last rows are plain sockets without any library of ours. A ratio is that of
the medians of the turns; CPU is user and system time of the broker's process for each request.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import time
from contextlib import ExitStack
from typing import Any

from support import brokers
from support.brokers import Load, Served, load
from support.rows import Row, p50, spread, table

from transport.client import Client

SMALL, LARGE = b"x" * 92, b"x" * (2**20 - 8)
"""Behind a number of 8 bytes."""
TURNS = 5
SECONDS = 0.6
WORKERS, MANY = 8, 1_000
PEER_RATE, PEER_P50 = 910.0, 1.14
"""What palaestrAI 3.5.18 did, one at a time over tcp, a second and in ms: measured elsewhere, here the least that is asked for."""


class Side:
    """One broker with its workers, and what its turns gave."""

    def __init__(self, folder: str, kind: str, *, workers: int = 1, tcp: bool = True) -> None:
        self.kind = kind
        self.words = {
            "proxy": "proxy",
            "guide": "rfc7",
            "ours": "rfc18",
            "naive": "rfc18",
            "forwarder": "rfc18",
        }.get(kind, "credit")
        self.endpoint = behind = _endpoint(folder, tcp=tcp)
        if kind in ("proxy", "plain", "keyed"):
            behind = _endpoint(folder, tcp=tcp and kind == "proxy")
        started: dict[str, tuple[Any, ...]] = {
            "proxy": (brokers.proxy, (self.endpoint, behind)),
            "naive": (brokers.naive, (self.endpoint,)),
            "forwarder": (brokers.forwarder, (self.endpoint,)),
            "guide": (brokers.guide, (self.endpoint, os.environ.get("ZGUIDE", ""))),
            "plain": (brokers.networked, (self.endpoint, behind)),
            "keyed": (brokers.keyed, (self.endpoint, behind)),
        }
        broker = started.get(kind, (brokers.ours, (self.endpoint,)))
        worker: tuple[Any, ...] = (brokers.echo, (behind, self.words, workers))
        if kind == "library":
            worker = (brokers.library_worker, (behind,))
        self.served = Served(broker, worker)
        self.loads: list[Load] = []
        self.cpu: list[float] = []
        """Of the broker, µs a request."""
        self.worker_cpu: list[float] = []

    def idle(self) -> float:
        """CPU seconds of the broker in a second without requests: heartbeats."""
        before = self.served.cpu(0)
        time.sleep(2 * SECONDS)
        return (self.served.cpu(0) - before) / (2 * SECONDS)

    def turn(self, *, in_flight: int, body: bytes, clients: int = 1) -> None:
        before = [self.served.cpu(0), self.served.cpu(1)]

        def look() -> None:
            before[:] = self.served.cpu(0), self.served.cpu(1)

        if self.kind == "library":
            done = asyncio.run(_library_load(self.endpoint, in_flight))
        else:
            keyed = self.kind == "keyed"
            done = load(
                self.endpoint,
                self.words,
                in_flight=in_flight,
                body=body,
                seconds=SECONDS,
                keyed=keyed,
                clients=clients,
                on_begin=look,
            )
        for index, into in enumerate((self.cpu, self.worker_cpu)):
            into.append((self.served.cpu(index) - before[index]) / len(done.taken) * 1e6)
        self.loads.append(done)

    @property
    def rate(self) -> float:
        return p50([each.rate for each in self.loads])

    @property
    def trip(self) -> float:
        return p50([each.p50 for each in self.loads])


async def _library_load(endpoint: str, in_flight: int) -> Load:
    taken: list[float] = []
    async with Client(endpoint) as client:
        await client.request("echo", SMALL, timeout=20)
        began = time.perf_counter()

        async def one() -> None:
            while (begun := time.perf_counter()) < began + SECONDS:
                await client.request("echo", SMALL, timeout=20)
                taken.append(time.perf_counter() - begun)

        await asyncio.gather(*(one() for _ in range(in_flight)))
        return Load(taken, time.perf_counter() - began)


def _endpoint(folder: str, *, tcp: bool) -> str:
    if not tcp:
        return f"ipc://{tempfile.mktemp(dir=folder)}"
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{one.getsockname()[1]}"


def measured(
    *kinds: str, in_flight: int, body: bytes = SMALL, workers: int = 1, tcp: bool = True
) -> dict[str, Side]:
    """All these take turns."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sides = {kind: Side(folder, kind, workers=workers, tcp=tcp) for kind in kinds}
        for side in sides.values():
            stack.enter_context(side.served)
        for _ in range(TURNS):
            for side in sides.values():
                side.turn(in_flight=in_flight, body=body)
    return sides


def _rates(side: Side) -> str:
    return spread([each.rate for each in side.loads], "req/s")


def rows() -> list[Row]:
    guide = ["guide"] if os.environ.get("ZGUIDE") else []
    many = measured("ours", "naive", "forwarder", *guide, in_flight=64, workers=WORKERS)
    ours, naive, least = many["ours"], many["naive"], many["forwarder"]
    what = f"tcp, 64 in flight, {WORKERS} workers"
    cpu = f"{p50(ours.cpu):.0f} µs against {p50(naive.cpu):.0f} µs"
    found = [
        Row(
            what=f"{what}: throughput",
            figure=ours.rate / naive.rate,
            unit="x naive",
            at_least=2,
            note=_rates(ours),
        ),
        Row(
            what=f"{what}: CPU", figure=p50(ours.cpu) / p50(naive.cpu), unit="x naive", at_most=0.45, note=cpu
        ),
        Row(
            what=f"{what}: throughput of a broker in Python that only forwards",
            figure=least.rate / naive.rate,
            unit="x naive",
            note=f"{p50(least.cpu):.0f} µs",
        ),
    ]
    found += [
        Row(
            what=f"{what}: throughput",
            figure=ours.rate / many[each].rate,
            unit="x the guide's Python broker",
            at_least=0.9,
            note=f"{_rates(many[each])}, {p50(many[each].cpu):.0f} µs; it has no limits",
        )
        for each in guide
    ]
    one = measured("credit", "naive", "proxy", in_flight=64)
    ours, what = one["credit"], f"tcp, 64 in flight, one worker with a credit of {brokers.CREDIT}"
    found += [
        Row(what=what, figure=ours.rate / one["naive"].rate, unit="x naive", at_least=5, note=_rates(ours)),
        Row(what=what, figure=ours.rate / one["proxy"].rate, unit="x proxy", at_least=0.25),
    ]
    for tcp, most in ((True, 1.3), (False, 1.5)):
        alone = measured("ours", "proxy", "forwarder", in_flight=1, tcp=tcp)
        ours, what = alone["ours"], f"{'tcp' if tcp else 'ipc'}, one in flight"
        trips = f"{ours.trip * 1e6:.0f} µs against {alone['proxy'].trip * 1e6:.0f} µs"
        found.append(
            Row(
                what=f"{what}: p50",
                figure=ours.trip / alone["proxy"].trip,
                unit="x proxy",
                at_most=most,
                note=trips,
            )
        )
        found.append(
            Row(
                what=f"{what}: p50 of a broker in Python that only forwards",
                figure=alone["forwarder"].trip / alone["proxy"].trip,
                unit="x proxy",
            )
        )
        if tcp:
            found += [
                Row(
                    what=what,
                    figure=ours.rate,
                    unit="req/s",
                    peer=f"{PEER_RATE:.0f} req/s",
                    at_least=PEER_RATE,
                ),
                Row(
                    what=f"{what}: p50",
                    figure=ours.trip * 1e3,
                    unit="ms",
                    peer=f"{PEER_P50} ms",
                    at_most=PEER_P50,
                ),
            ]
    large = measured("credit", "proxy", in_flight=8, body=LARGE)
    ours = large["credit"]
    found.append(
        Row(
            what="1 MB, 8 in flight, tcp",
            figure=ours.rate / large["proxy"].rate,
            unit="x proxy",
            at_least=0.8,
            note=_rates(ours),
        )
    )
    found += [_cost_of_many(), *_cost_of_keys()]
    ours = measured("library", in_flight=64, tcp=False)["library"]
    both = p50([sum(each) for each in zip(ours.cpu, ours.worker_cpu, strict=True)])
    found.append(
        Row(
            what="our Client and Worker, ipc, 64 in flight: CPU of broker and worker",
            figure=both,
            unit="µs a request",
            at_most=130,
            note=f"broker {p50(ours.cpu):.0f} µs; {_rates(ours)}",
        )
    )
    return found


def _cost_of_many() -> Row:
    """CPU of the broker for a request, without its heartbeats: of many clients and workers, against a few."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        few, many = (Side(folder, "ours", workers=peers) for peers in (WORKERS, MANY))
        costs: dict[Side, list[float]] = {few: [], many: []}
        for side in costs:
            stack.enter_context(side.served)
            side.turn(in_flight=64, body=SMALL)  # all are registered
        idle = {side: side.idle() for side in costs}
        for _ in range(TURNS):
            for side, of in costs.items():
                side.turn(in_flight=64, body=SMALL, clients=WORKERS if side is few else MANY)
                of.append(side.cpu[-1] - 1e6 * idle[side] / side.loads[-1].rate)
        return Row(
            what=f"{MANY:,} clients and as many workers, 64 in flight: CPU without heartbeats",
            figure=p50(costs[many]) / p50(costs[few]),
            unit=f"x that of {WORKERS}",
            at_most=1.5,
            note=f"{p50(costs[many]):.0f} µs against {p50(costs[few]):.0f} µs; heartbeats {100 * idle[many]:.1f} % of a core",
        )


def _cost_of_keys() -> list[Row]:
    """Of CURVE, for clients that come over tcp: against the same without."""
    found = []
    for what, in_flight, body in (
        ("one in flight: p50", 1, SMALL),
        ("64 in flight", 64, SMALL),
        ("1 MB, 8 in flight", 8, LARGE),
    ):
        both = measured("plain", "keyed", in_flight=in_flight, body=body)
        plain, keyed = both["plain"], both["keyed"]
        figure, note = keyed.rate / plain.rate, _rates(keyed)
        if in_flight == 1:
            figure = keyed.trip / plain.trip
            note = f"{keyed.trip * 1e6:.0f} µs against {plain.trip * 1e6:.0f} µs"
        cpu = f"CPU of the broker {p50(keyed.cpu):.0f} µs against {p50(plain.cpu):.0f} µs"
        found.append(Row(what=f"CURVE, {what}", figure=figure, unit="x without keys", note=f"{note}; {cpu}"))
    return found


if __name__ == "__main__":
    print(table(rows()))
