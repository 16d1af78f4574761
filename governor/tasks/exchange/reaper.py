"""The death of a runner on this machine: its whole tree is killed, and seen dead.

A runner is its tasks' subreaper, so that what they started stays below it, in sessions of its own too. The tree is
stopped from the root on, until nothing new is found below it: what stands still forks no more. Then all are killed, the
root first.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path
from typing import Final

KILL_SECONDS: Final = 5.0
"""How long a killed process may take to die: only one in an uninterruptible system call takes longer."""
STOP_SECONDS: Final = 0.05
"""How long a process may take to stand still; who is not ours to stop never does."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_STARTTIME: Final = 19
"""Its place in /proc/PID/stat behind the name, which may hold blanks and brackets."""


def birth(pid: int) -> float:
    """When a process was born, in seconds since the boot: the same whoever asks, also when the wall clock is set
    meanwhile. Raises OSError when it is dead.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[_STARTTIME]) / _TICKS


def open_pid(pid: int, created: float) -> int | None:
    """A pidfd for the process that was born at `created` (as `birth` has it); None when that one is dead."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        if abs(birth(pid) - created) < 0.5 / _TICKS:
            return handle
    except (FileNotFoundError, ProcessLookupError):
        pass
    os.close(handle)
    return None


def kill_tree(pid: int, handle: int) -> list[int]:
    """Kills the process of the pidfd and its descendants, waits until they are dead; the pids that live on: stuck in
    the kernel, or of another user.

    Blocks up to `KILL_SECONDS`.
    """
    handles = {pid: os.dup(handle)}
    end = time.monotonic() + KILL_SECONDS
    try:
        _stop(pid, handle)
        _hurry(pid)
        seen = {pid}
        while time.monotonic() < end:
            late = set(_descendants(pid)) - seen
            if not late:
                break
            seen |= late
            for each in late:
                with contextlib.suppress(ProcessLookupError):
                    handles[each] = os.pidfd_open(each)
                    _stop(each, handles[each])
        for opened in handles.values():
            _send(opened, signal.SIGKILL)
        return _await_deaths(handles)
    finally:
        _send(handle, signal.SIGKILL)  # also when the tree could not be read: it is not to stay stopped
        for opened in handles.values():
            os.close(opened)


def _stop(pid: int, handle: int) -> None:
    """Returns when no thread of it runs: a signal takes its time to reach the one that forks. The kernel tells of this
    only to a parent, so it is asked.
    """
    _send(handle, signal.SIGSTOP)
    end = time.monotonic() + STOP_SECONDS
    running = _threads(pid)
    while running := [thread for thread in running if _runs(thread)]:
        if time.monotonic() > end:
            return
        time.sleep(1e-4)


def _runs(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] not in "TtZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _hurry(pid: int) -> None:
    """Ray runs its workers at nice 15; a dying one then waits for those that start, 70 to 200 ms against 20 (measured).
    Whoever may not raise priorities lets it be.
    """
    for thread in _threads(pid):
        try:
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)
        except PermissionError:
            return
        except ProcessLookupError:
            continue


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
    with contextlib.suppress(ProcessLookupError, PermissionError):
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
