"""Whether a process is alive, and what it has open."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil

from governor.processes.readiness import readable

SECONDS = 20


def lives(pid):
    """A zombie does not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def open_fds():
    """Descriptors of this process."""
    return sorted(link.name for link in Path("/proc/self/fd").iterdir())


async def gone(pid):
    """Returns when the process is dead: an event, within the test's time."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        async with asyncio.timeout(SECONDS):
            await readable(pidfd)
    finally:
        os.close(pidfd)


def first_child(parent: psutil.Process) -> psutil.Process:
    """The live child that was forked first. The kernel lists children in this order, and adopted ones after them; pids are no
    order, because they wrap around.
    """
    listed = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text()
    return psutil.Process(int(listed.split()[0]))
