"""Waiting for file descriptors: sentinels and pidfds are events, so nothing has to poll. Stdlib only: the guard uses it."""

from __future__ import annotations

import os
import select


def is_readable(*fds: int, timeout: float | None = 0) -> bool:
    """Whether any of `fds` is readable within `timeout` seconds (None: for ever). Blocks for that long."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if timeout is None else timeout * 1000))


async def readable(*fds: int) -> None:
    """Returns when any of `fds` is readable. Any number of waiters may wait for the same one."""
    import asyncio  # noqa: PLC0415  # the guard must not hold it

    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    # A loop has one callback for each descriptor: each waiter waits for a duplicate of its own.
    own = [os.dup(fd) for fd in fds]
    try:
        for fd in own:
            loop.add_reader(fd, event.set)
        await event.wait()
    finally:
        for fd in own:
            loop.remove_reader(fd)
            os.close(fd)
