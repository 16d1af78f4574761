"""Environments whose start a test controls, and an `ActorPool` of them."""

from __future__ import annotations

import asyncio
import contextlib

from governor.episodes.text.actor_pool import ActorPool, EnvironmentEndpoint
from governor.errors import ConductorError

TASKS = [("lake", str(n), "g") for n in range(6)]


class Environment:
    def __init__(self, world):
        self.world = world
        self.number = world.started
        world.open.add(self)

    async def aclose(self):
        self.world.open.discard(self)


class World:
    """Starts environments, in the way that the test sets."""

    def __init__(self):
        self.started = self.together = self.most = 0
        self.open = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self.fails = lambda number: False
        self.reusable = True

    async def make(self):
        self.started += 1
        number = self.started
        self.together += 1
        self.most = max(self.most, self.together)
        self.arrived.set()
        try:
            await self.gate.wait()
        finally:
            self.together -= 1
        if self.fails(number):
            raise ConductorError(f"start {number} failed")
        return EnvironmentEndpoint("inproc", None, Environment(self), self.reusable)


@contextlib.asynccontextmanager
async def pools():
    """A world, and a function that makes pools of it. Closes them and asserts that no environment is left open."""
    world = World()
    async with contextlib.AsyncExitStack() as stack:

        def make(tasks=TASKS, **more):
            pool = ActorPool(
                tasks, world.make, **{"pool_size": 2, "start_backoff": 0.0, "start_timeout": 20.0, **more}
            )
            stack.push_async_callback(pool.aclose)
            return pool

        yield world, make
    assert world.open == set(), "environments were left open"


async def waiting(pool):
    """A task that waits in `acquire`."""
    task = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def soon(awaitable):
    return await asyncio.wait_for(awaitable, 20)
