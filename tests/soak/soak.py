"""A broker that listens with keys, for minutes, among strangers, floods and slow readers: `make soak` plays ten minutes.

    python tests/soak/soak.py [--seconds 600]

A client with a key asks one request after the other meanwhile. First alone, then beside strangers without a key, beside others with a
key, beside all of them; that is the table. Then all of it to the end: memory, descriptors, rate and p99 must be flat. Exits with 1 if
something is not as it must be.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this file is started by its path

from tests.soak import peers
from transport.client import Client
from transport.network.curve import ClientKeys

MOST_P99: Final = 0.25
"""Seconds, beside others with a key."""
MOST_GROWTH: Final = 32 << 20
"""Bytes of memory, from the first fifth of the last part to its last one."""
SAMPLES: Final = 10
"""Of the last part."""
_spawn = multiprocessing.get_context("spawn")


class Sample(NamedTuple):
    """Of some seconds: requests a second, 99th percentile and the longest in seconds, failed ones; memory and descriptors at their end."""

    rate: float
    p99: float
    longest: float
    failed: int
    memory: int
    files: int


@asynccontextmanager
async def running(target, *arguments):
    process = _spawn.Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        await asyncio.to_thread(process.join)


async def sampled(client: Client, broker: psutil.Process, seconds: float) -> Sample:
    taken, failed, until = [], 0, time.monotonic() + seconds
    while (begun := time.monotonic()) < until:
        try:
            await client.request("echo", b"x" * 100, timeout=20, idempotent=True)
            taken.append(time.monotonic() - begun)
        except Exception as error:  # noqa: BLE001  # counted; any one is too many
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            failed += 1
    taken.sort()
    return Sample(
        rate=len(taken) / seconds,
        p99=taken[len(taken) * 99 // 100] if taken else seconds,
        longest=taken[-1] if taken else seconds,
        failed=failed,
        memory=broker.memory_info().rss,
        files=broker.num_fds(),
    )


async def soak(seconds: float) -> list[tuple[str, Sample]]:
    """A third of the time for the four parts of the table, the rest for all together."""
    found: list[tuple[str, Sample]] = []
    with tempfile.TemporaryDirectory(prefix="soak-", dir="/tmp") as folder:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        endpoint = f"tcp://127.0.0.1:{port}"
        strangers = [(peers.run_strangers, port)]
        others = [(peers.run_flood, endpoint), (peers.run_slow_reader, endpoint)]
        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(running(peers.run_broker, folder, endpoint))
            await stack.enter_async_context(running(peers.run_worker, folder))
            keys = ClientKeys(server=peers.SERVER.public, pair=peers.GOOD)
            client = await stack.enter_async_context(Client(endpoint, keys=keys))
            await client.request("echo", b"x", timeout=30, idempotent=True)
            watched = psutil.Process(broker.pid)
            parts: dict[str, list[tuple[Any, ...]]] = {
                "alone": [],
                "beside strangers": strangers,
                "beside others with a key": others,
                "beside all": strangers + others,
            }
            for name, beside in parts.items():
                async with AsyncExitStack() as part:
                    for target, *arguments in beside:
                        await part.enter_async_context(running(target, *arguments))
                    if beside:
                        await asyncio.sleep(min(2.0, seconds / 24))  # they have begun
                    found.append((name, await sampled(client, watched, seconds / 12)))
            for target, *arguments in parts["beside all"]:
                await stack.enter_async_context(running(target, *arguments))
            share = seconds / 1.5 / SAMPLES
            found += [(f"all, {n + 1}", await sampled(client, watched, share)) for n in range(SAMPLES)]
    return found


def faults(found: list[tuple[str, Sample]], *, in_time: bool = True) -> list[str]:
    """What is not as it must be; `in_time`: on a machine that does nothing else."""
    wrong = [f"{name}: {sample.failed} requests failed" for name, sample in found if sample.failed]
    if in_time:
        wrong += [f"{name}: p99 is {sample.p99:.3f} s" for name, sample in found if sample.p99 > MOST_P99]
    last = [sample for name, sample in found if name.startswith("all,")]
    fifth = max(len(last) // 5, 1)
    before, after = last[:fifth], last[-fifth:]
    grown = min(each.memory for each in after) - max(each.memory for each in before)
    if grown > MOST_GROWTH:
        wrong.append(f"memory has grown by {grown >> 20} MiB")
    if min(each.files for each in after) > 2 * max(each.files for each in before):
        wrong.append(f"descriptors have grown from {before[-1].files} to {after[-1].files}")
    if in_time and max(each.rate for each in after) < 0.5 * min(each.rate for each in before):
        wrong.append(
            f"the rate has fallen from {before[0].rate:.0f} to {after[-1].rate:.0f} requests a second"
        )
    return wrong


def table(found: list[tuple[str, Sample]]) -> str:
    lines = ["| part | requests/s | p99 | longest | memory | descriptors |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {name} | {one.rate:,.0f} | {one.p99 * 1e3:.1f} ms | {one.longest * 1e3:.0f} ms | {one.memory >> 20} MiB | {one.files} |"
        for name, one in found
    ]
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--seconds", type=float, default=600.0)
    found = asyncio.run(soak(options.parse_args().seconds))
    sys.stdout.write(table(found) + "\n")
    for fault in (wrong := faults(found)):
        sys.stdout.write(f"not as it must be: {fault}\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
