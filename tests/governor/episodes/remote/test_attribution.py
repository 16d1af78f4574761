"""To which episode raw output of an environment's process belongs."""

import asyncio
import os
from functools import partial

from governor.episodes.remote import control, wire
from governor.episodes.remote.environment_host import EnvironmentHost
from governor.episodes.remote.environment_pool import EnvironmentPool
from governor.episodes.remote.request_channel import RequestChannel
from tests.support.in_process_commands import WORLDS


async def test_raw_output_belongs_to_an_episode_until_its_worker_returns_the_environment(
    process, harness, monkeypatch
):
    monkeypatch.syspath_prepend(WORLDS)
    make = partial(EnvironmentHost, entry="walk_world:Walk", params={})
    pool = EnvironmentPool(make, size=1, name="walk", folder=harness.folder, on_lost=lambda _: None)
    await pool.start()
    wanted = control.Acquire(owner="simulation", incarnation=1, worker=0, turn=0)
    lease = await pool.acquire(wanted)
    stop = os.eventfd(0, os.EFD_NONBLOCK)
    channel = RequestChannel(name="walk", endpoint=lease.endpoint, identity=lease.lease, stop=stop)
    reset = wire.ResetFrame(channel.next_number(), seed=1, episode=5, phase="train")
    await asyncio.to_thread(channel.ask, reset, deadline=None)
    assert process.fields == b'"phase":"train","episode":5,'
    await pool.release(control.Release(lease=lease.lease))
    assert process.fields == b""
    channel.close()
    os.close(stop)
    await pool.close()
