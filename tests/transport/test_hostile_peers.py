"""A real broker among peers that flood it, hold its connections, kill its workers, and die at the worst moment."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress

import hostile_peers as hostile
import pytest
from conftest_peers import FAST, process, spawn

from transport.broker import encode_settings

ZMTP_HEARTBEATS = 3.0
"""Seconds in which the next one would be due: they were sent every 2 s."""


def payload(house, limits=FAST):
    return encode_settings(
        client_endpoint=house.client_endpoint, worker_endpoint=house.worker_endpoint, limits=limits
    )


@asynccontextmanager
async def busiest():
    """The most CPU time, in seconds, that this thread used between two turns of the event loop meanwhile."""
    gaps = [0.0]

    async def look():
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            gaps[0] = max(gaps[0], now - last)
            last = now

    looking = asyncio.create_task(look())
    try:
        yield gaps
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


# -- peers that die ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["broker", "client", "worker"])
async def test_a_peer_that_is_killed_with_its_queue_full_aborts_nobody(house, who):
    """libzmq aborts when a ZMTP heartbeat is due for a peer that has hung up while the queue of what it sent was full."""
    endpoint = f"ipc://{house.folder}/raw.sock"
    blocked, full, release = spawn.Event(), spawn.Event(), spawn.Event()
    if who == "broker":
        busy = process(
            hostile.run_busy_broker, house.client_endpoint, house.worker_endpoint, blocked, release
        )
        peer = process(hostile.fill, house.client_endpoint, blocked, full)
    else:
        run = hostile.run_busy_client if who == "client" else hostile.run_busy_worker
        busy = process(run, endpoint, blocked, release)
        peer = process(hostile.fill_from_the_broker, endpoint, blocked, full)
    async with busy as victim:
        async with peer as dies:
            assert await asyncio.to_thread(full.wait, 30)
            dies.kill()
        await asyncio.to_thread(victim.join, ZMTP_HEARTBEATS)
        assert victim.exitcode is None
        release.set()
        if who == "broker":
            async with house.client() as client:
                assert await client.request("mmi.service", b"x", timeout=30) == [b"404"]
        else:
            await asyncio.to_thread(victim.join, 30)
            assert victim.exitcode == 0
    for file in house.folder.iterdir():
        file.unlink()


# -- floods ------------------------------------------------------------------------------------------------


# -- connections -------------------------------------------------------------------------------------------
