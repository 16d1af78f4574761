"""The death of a runner on this machine: all that its tasks have started is killed, and seen dead.

A runner is its tasks' subreaper, so that what they started stays below it, in sessions of its own too. What a runner
that has crashed leaves behind has another parent by then, and is known by its mark: a resource limit that Linux has
kept without a use since 2.4 (RLIMIT_LOCKS). Whatever a process does, its children inherit it: by fork alone too, and
with an environment of their own. Both are stopped, the root first, until nobody new is found: what stands still forks
no more. Then all are killed.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import select
import signal
import time
from pathlib import Path
from typing import Final

KILL_SECONDS: Final = 5.0
"""How long a killed process may take to die: only one in an uninterruptible system call takes longer."""
STOP_SECONDS: Final = 0.05
"""How long a process may take to stand still; who is not ours to stop never does."""
SETTLE_SECONDS: Final = 0.1
"""How long processes that end, of whomever, may make us look once more."""
UNMARKED: Final = 0
MARK_LIMIT: Final = 10
"""RLIMIT_LOCKS, which `resource` has no name for."""
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


def mark() -> int:
    """Marks this process, and all that it starts from now on; `UNMARKED` where the system refuses."""
    chosen = 1 + secrets.randbits(62)
    try:
        resource.setrlimit(MARK_LIMIT, (chosen, resource.getrlimit(MARK_LIMIT)[1]))
    except (OSError, ValueError):
        return UNMARKED
    return chosen


def kill_tree(pid: int, handle: int | None, marked: int = UNMARKED) -> list[int]:
    """Kills the process of the pidfd (None: it is dead already), its descendants, and all that have its mark; waits
    until they are dead. The pids that live on: stuck in the kernel, or of another user.

    Blocks up to `KILL_SECONDS` until all stand still, and as long again until they are dead. Raises OSError without
    descriptors to look at them; those that were found are killed all the same.
    """
    handles = {} if handle is None else {pid: handle}
    seen = set(handles)
    begin = time.monotonic()
    try:
        if handle is not None and not _is_dead(handle):
            _stop(pid, handle)
            _hurry(pid)
        while (passed := time.monotonic() - begin) < KILL_SECONDS:
            late, settled = _bearers(marked)
            if handle is not None and not _is_dead(handle):
                late |= set(descendants(pid))
            late -= seen
            if not late and (settled or passed > SETTLE_SECONDS):
                break
            seen |= late
            _hold(late, handles)
        for opened in handles.values():
            _send(opened, signal.SIGKILL)
        return _await_deaths(handles)
    finally:
        for opened in handles.values():
            _send(
                opened, signal.SIGKILL
            )  # also when somebody could not be looked at: nobody is to stay stopped
            if opened != handle:
                os.close(opened)


def _hold(pids: set[int], handles: dict[int, int]) -> None:
    """Stops them. Where descriptors run out, those that are left are killed at once, and OSError is raised."""
    rest = list(pids)
    try:
        while rest:
            with contextlib.suppress(ProcessLookupError):
                handles[rest[-1]] = os.pidfd_open(rest[-1])
                _stop(rest[-1], handles[rest[-1]])
            rest.pop()
    except OSError:
        for pid in rest:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        raise


def _bearers(marked: int) -> tuple[set[int], bool]:
    """Who has this mark, of those whose limits we may see; and whether nobody ended meanwhile, who might have forked
    behind our back.
    """
    if marked == UNMARKED:
        return set(), True
    found: set[int] = set()
    settled = True
    for name in os.listdir("/proc"):  # noqa: PTH208  # 1 us each: there may be thousands
        if not name.isdigit():
            continue
        try:
            if resource.prlimit(int(name), MARK_LIMIT)[0] == marked:
                found.add(int(name))
        except ProcessLookupError:
            settled = False
        except PermissionError:
            continue
    return found, settled


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


def descendants(pid: int) -> list[int]:
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


def _is_dead(handle: int) -> bool:
    """Its pid may be another process's by now."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


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
