"""To which episode raw output of an environment's process belongs."""

import asyncio
import os

from governor.episodes.remote import wire
from governor.episodes.remote.environments.host import EnvironmentHost
from governor.episodes.remote.request_channel import RequestChannel
from governor.messages import Made


async def test_raw_output_belongs_to_an_episode_until_its_worker_returns_the_environment(process, harness):
    host = EnvironmentHost("walk", harness.folder / "walk", made=Made(entry="walk_world:Walk"))
    await host.start()
    host.lease = b"lease-1"
    stop = os.eventfd(0, os.EFD_NONBLOCK)
    channel = RequestChannel(name="walk", endpoint=host.endpoint, identity="lease-1", stop=stop)
    reset = wire.ResetFrame(channel.next_number(), seed=1, episode=5, phase="train")
    await asyncio.to_thread(channel.ask, reset, deadline=None)
    assert process.fields == b'"phase":"train","episode":5,'
    host.lease_ended()
    assert process.fields == b""
    channel.close()
    os.close(stop)
    await host.close(seconds=20)
