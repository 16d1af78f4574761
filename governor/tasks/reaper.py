"""The death of a runner on this machine: its whole tree is killed, and seen dead.

A runner is its tasks' subreaper, so that what they started stays below it, in sessions of its own too. It is stopped
before the tree is read, so that it cannot fork meanwhile, and killed before its children, who could otherwise be
taken for orphans.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path
from typing import Final

import psutil

KILL_SECONDS: Final = 5.0
"""How long a killed process may take to die: only one in an uninterruptible system call takes longer."""


def open_pid(pid: int, created: float) -> int | None:
    """A pidfd for the process that was born at `created` (psutil's seconds); None when that one is dead."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        if abs(psutil.Process(pid).create_time() - created) < 0.05:
            return handle
    except psutil.NoSuchProcess:
        pass
    os.close(handle)
    return None


def kill_tree(pid: int, handle: int) -> list[int]:
    """Kills the process of the pidfd and its descendants, waits until they are dead; the pids that live on.

    Blocks up to `KILL_SECONDS`.
    """
    handles = {pid: os.dup(handle)}
    try:
        _send(handle, signal.SIGSTOP)
        family = _descendants(pid)
        _send(handle, signal.SIGKILL)
        while family:
            for each in family:
                with contextlib.suppress(ProcessLookupError):
                    handles[each] = os.pidfd_open(each)
                    _send(handles[each], signal.SIGSTOP)
            # what they forked before they stood still
            late = [child for each in family for child in _descendants(each) if child not in handles]
            for each in family:
                if each in handles:
                    _send(handles[each], signal.SIGKILL)
            family = late
        return _await_deaths(handles)
    finally:
        for opened in handles.values():
            os.close(opened)


def _descendants(pid: int) -> list[int]:
    """All below it, read from the lists of children of its threads, not by a walk over all of /proc."""
    found: list[int] = []
    stack = [pid]
    while stack:
        for listing in _threads(stack.pop()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                children = [int(child) for child in (listing / "children").read_text().split()]
                found += children
                stack += children
    return found


def _threads(pid: int) -> list[Path]:
    """Its threads; none when it dies meanwhile, which may show at any step of the listing."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _send(handle: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)


def _await_deaths(handles: dict[int, int]) -> list[int]:
    waiting = {handle: pid for pid, handle in handles.items()}
    poll = select.poll()
    for handle in waiting:
        poll.register(handle, select.POLLIN)
    end = time.monotonic() + KILL_SECONDS
    while waiting and (left := end - time.monotonic()) > 0:
        for handle, _ in poll.poll(left * 1000):
            poll.unregister(handle)
            del waiting[handle]
    return list(waiting.values())
