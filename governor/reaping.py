"""What an earlier invocation of this house has left alive: found, killed, seen dead; and named where it would not die.

Every process below a daemon has inherited a variable in its environment, named after the house (its state folder) and
with the daemon's own birth as value. So whoever has the house's variable with another value is left over, in whatever
session or process group it is, and whoever its parent has become. Beside them are judged: processes on record, by
their births, and all descendants of both. Rules:
* Spared are this process and its ancestors: a daemon may be started by what an earlier one has left.
* A pidfd is opened before a process is looked at: what is killed is what was seen, not a later owner of its number.
* What is killed forks no more, so that looking again until nobody is found is proof.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor.births import Birth
from governor.guard import descendants, parents

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

VARIABLE: Final = "RUN_GOVERNOR_HOUSE_"
KILL_SECONDS: Final = 5.0
"""How long what was killed may take to die, all together."""
LOOK_AGAIN_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOver:
    """A process of an earlier invocation. `handle` is its pidfd."""

    pid: int
    command: str
    handle: int

    def __str__(self) -> str:
        return f"{self.pid} ({self.command})"


def house_of(state_dir: Path) -> str:
    """16 hexadecimal digits for a state folder, under whatever path and in whatever mount it is seen."""
    folder = state_dir.stat()
    return hashlib.blake2b(f"{folder.st_dev}:{folder.st_ino}".encode(), digest_size=8).hexdigest()


def mark(state_dir: Path) -> None:
    """From now on what this process starts is known as this house's, and of this invocation."""
    os.environ[VARIABLE + house_of(state_dir)] = _own()
    # Else setproctitle writes long titles over the environment that /proc shows; Ray's agents lost the mark by it.
    os.environ["SPT_NOENV"] = "1"


def unmark(state_dir: Path) -> None:
    """What this process starts from now on is its own affair."""
    os.environ.pop(VARIABLE + house_of(state_dir), None)


def kill(handle: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)


def kill_left_over(house: str, recorded: Collection[Birth] = ()) -> tuple[list[LeftOver], list[LeftOver]]:
    """Those that were killed and seen dead, and those that live on, whose handles are the caller's to close.

    Blocks, up to `KILL_SECONDS` where somebody won't die.
    """
    end = time.monotonic() + KILL_SECONDS
    dead: list[LeftOver] = []
    alive: dict[int, LeftOver] = {}
    while True:
        late = _look(house, recorded, known=alive)
        for process in late:
            kill(process.handle)
        alive |= {process.pid: process for process in late}
        remaining = end - time.monotonic()
        for process in _await_deaths(alive.values(), seconds=min(LOOK_AGAIN_SECONDS, remaining)):
            os.close(process.handle)
            dead.append(alive.pop(process.pid))
        if remaining <= 0 or not (late or alive):
            return dead, list(alive.values())


def _look(house: str, recorded: Iterable[Birth], *, known: Collection[int]) -> list[LeftOver]:
    """Who is there and not among those that are `known`."""
    spared = {os.getpid(), *_ancestors(), *known}
    handles = {birth.pid: handle for birth in recorded if (handle := birth.open()) is not None}
    for name in os.listdir("/proc"):  # noqa: PTH208  # there may be thousands
        if name.isdigit() and int(name) not in spared and int(name) not in handles:
            handle = _open_marked(int(name), house)
            if handle is not None:
                handles[int(name)] = handle
    below = {pid: _open(pid) for pid in descendants(*handles) - handles.keys()}
    still_below = descendants(*handles)
    found = []
    for pid, handle in (handles | below).items():
        if handle is None:
            continue
        if pid in spared or (pid in below and pid not in still_below) or _is_dead(handle):
            os.close(handle)
        else:
            found.append(LeftOver(pid=pid, command=_command(pid), handle=handle))
    return found


def _open_marked(pid: int, house: str) -> int | None:
    """A pidfd of the process, if an earlier invocation has marked it."""
    if not _is_marked(pid, house) or (handle := _open(pid)) is None:
        return None
    if _is_marked(pid, house) and not _is_dead(handle):  # so it is the one that the handle stands for
        return handle
    os.close(handle)
    return None


def _is_marked(pid: int, house: str) -> bool:
    begin = f"{VARIABLE}{house}=".encode()
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # dead, or somebody else's
        return False
    found = (
        [entry for entry in environment.split(b"\0") if entry.startswith(begin)]
        if begin in environment
        else []
    )
    return bool(found) and found[0] != begin + _own().encode()


def _own() -> str:
    me = Birth.of(os.getpid())
    return f"{me.pid}.{me.ticks}"


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _command(pid: int) -> str:
    try:
        path = Path(f"/proc/{pid}")
        words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return (words or (path / "comm").read_text(errors="replace").strip())[:200]
    except OSError:
        return "?"


def _ancestors() -> set[int]:
    above = parents()
    found: set[int] = set()
    pid = os.getpid()
    while (pid := above.get(pid, 0)) and pid not in found:
        found.add(pid)
    return found


def _is_dead(handle: int) -> bool:
    return bool(_readable([handle], seconds=0))


def _await_deaths(processes: Collection[LeftOver], *, seconds: float) -> list[LeftOver]:
    """Those that are dead once all are, or the time is up."""
    end = time.monotonic() + seconds
    waiting = {process.handle: process for process in processes}
    dead: list[LeftOver] = []
    while waiting:
        ready = _readable(waiting, seconds=max(0.0, end - time.monotonic()))
        dead += [waiting.pop(handle) for handle in ready]
        if time.monotonic() >= end:
            break
    return dead


def _readable(handles: Iterable[int], *, seconds: float) -> list[int]:
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    return [handle for handle, _ in poll.poll(seconds * 1000)]
