"""The cgroups of marked processes, where the system grants them: the third selector of `kill_tree`.

Where the cgroup that a daemon starts in is delegated to it (systemd: `Delegate=`), the daemon makes one below it and
joins it. Each child of it joins one below the daemon's, each runner one below its conductor's; they are named after the
marks: `governor-<mark>/<mark>/<mark>`. A process can lose its mark by setting its limits, and can fork faster than a
search finds it. It stays in its cgroup all the same, and one write kills that. Elsewhere nothing is made.

* No controller is enabled: limits stay those of the cgroup above, and a group may hold both processes and groups.
* A process makes the group that it joins. The process that kills a group removes it once it is empty; another process that
  was about to join makes it again.
* Stdlib only: the guard uses it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_GROUP: Final = re.compile("/governor-[0-9a-f]{16}(?:/[0-9a-f]{16}){0,2}(?=/|$)")
"""In the path of a folder: a group; there are several where a daemon was started by what another one runs."""
_TRIES: Final = 10
_RECLAIMABLE: Final = ("inactive_file", "active_file", "slab_reclaimable")
"""Pages of files on disk, and what the kernel knows of them; a tmpfs is not among them."""
_KILLS: Final = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_VMSTAT: Final = Path("/proc/vmstat")
NOWHERE: Final = Path("/nowhere")
"""A folder that there is not: no group is found in it."""


def join(marks: Sequence[int]) -> bool:
    """Moves this process into the group of the last of these marks: of a daemon, of its child, of that one's runner.

    Returns False where there is no such group: nothing is delegated, or this process is not below the group of that daemon.
    """
    if (group := _group_below(of_process(), marks)) is None:
        return False
    for _ in range(_TRIES):
        try:
            group.mkdir(parents=True, exist_ok=True)
            _write(group / "cgroup.procs", b"0")
        except FileNotFoundError:  # removed, since it was empty yet
            continue
        except OSError:
            return False
        return True
    return False


def leave() -> None:
    """Moves this process back to where its daemon was started."""
    if found := _groups(of_process()):
        with contextlib.suppress(OSError):
            _write(_above(found[-1]) / "cgroup.procs", b"0")
            clear()


def clear() -> None:
    """Removes the groups of dead daemons that were started where this process, or its daemon, was. The group of a running
    daemon is not empty, and stays.
    """
    here = of_process()
    for place in (here, *map(_above, _groups(here))):
        for group in _groups_in(place):
            remove(group)


def own_mark() -> int | None:
    """The mark whose group this process is in."""
    return _mark(of_process())


def of_process(pid: int | None = None) -> Path:
    """The folder of the cgroup of a process, by default of this one. `NOWHERE` where it is gone, or there are no cgroups v2."""
    try:
        lines = Path(f"/proc/{pid or 'self'}/cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return NOWHERE
    path = next((line[3:].removesuffix(" (deleted)") for line in lines if line.startswith("0::")), "")
    root, mount = _mount()
    if ".." in path or not Path(path).is_relative_to(root):  # it is outside of what is mounted here
        return NOWHERE
    return mount / Path(path).relative_to(root)


def of_service() -> Path:
    """The cgroup in which the outermost daemon above this process was started: below systemd that of the unit."""
    return _base(of_process())


def find(marks: Sequence[int]) -> Path | None:
    """The group of the last of these marks, of this process' daemon or of one beside it."""
    here = of_process()
    top, *below = _names(marks)
    for place in (here, *here.parents):
        for group in (place.joinpath(*below) if place.name == top else None, place.joinpath(top, *below)):
            if group is not None and group.is_dir():
                return group
    return None


def marks() -> dict[int, int]:
    """The marks of the processes that are in groups, of all daemons that were started where that of this process was."""
    found: dict[int, int] = {}
    for folder in (folder for group in _groups_in(_base(of_process())) for folder in _folders(group)):
        found |= dict.fromkeys(_members(folder), _mark(folder) or 0)
    return found


def pids(group: Path) -> set[int]:
    """The processes in this group, or below it."""
    return {pid for folder in _folders(group) for pid in _members(folder)}


def is_in(pid: int, group: Path) -> bool:
    return of_process(pid).is_relative_to(group)


def kill(group: Path) -> None:
    """Sends SIGKILL to all processes in it or below at once, also to those that are just being forked."""
    with contextlib.suppress(OSError):  # it is gone, or Linux is older than 5.14
        _write(group / "cgroup.kill", b"1")


def remove(group: Path, *, seconds: float = 0) -> bool:
    """Removes it and those below it, once no process runs in it; False where one still does after `seconds`. Blocks."""
    end = time.monotonic() + seconds
    try:
        events = os.open(group / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return not group.exists()
    try:
        poll = select.poll()
        poll.register(events, select.POLLPRI)
        while b"populated 1" in os.pread(events, 1024, 0):
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                return False
        for folder in _folders(group):
            folder.rmdir()
    except OSError:  # removed by another, or joined meanwhile
        return not group.exists()
    finally:
        os.close(events)
    return True


class Memory(NamedTuple):
    """Of a cgroup with a limit, in bytes. `used` is without what the kernel drops before it kills."""

    limit: int
    used: int


def memory(folder: Path) -> Memory | None:
    """Of the cgroup at or above this one that has least left; None where none of them has a limit."""
    return min(_memories(folder), key=lambda each: each.limit - each.used, default=None)


def memory_limit(folder: Path) -> int | None:
    """The least one of the cgroup and those above it, in bytes; None where none of them has a limit."""
    return min((each.limit for each in _memories(folder)), default=None)


def memory_kills(folder: Path | None = None) -> int:
    """How often the kernel has killed for lack of memory: in this cgroup, by default in that of the service, or on the machine where it
    has no such count.
    """
    for file in ((folder or of_service()) / "memory.events", _VMSTAT):
        with contextlib.suppress(OSError):
            found = _KILLS.search(file.read_text())
            return int(found[1]) if found else 0
    return 0


def lack_of_memory(kills_before: int, folder: Path | None = None) -> str:
    """Why a process was killed that nobody here has killed: "" where the kernel has killed nothing since there were so many kills."""
    if memory_kills(folder) <= kills_before:
        return ""
    found = memory(folder or of_service())
    return "the kernel killed it for lack of memory" + (
        f": all of its service may have {found.limit / (1 << 30):.2f} GiB" if found else ""
    )


def _memories(folder: Path) -> list[Memory]:
    return [found for place in (folder, *folder.parents) if (found := _memory(place)) is not None]


def _memory(folder: Path) -> Memory | None:
    try:
        limit = (folder / "memory.max").read_text().strip()
        if not limit.isdecimal():
            return None
        used = int((folder / "memory.current").read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
        counts = {name: int(count) for name, count in map(str.split, lines)}
        return Memory(int(limit), used - sum(counts.get(name, 0) for name in _RECLAIMABLE))
    except OSError:  # the root of all, or without the controller
        return None


def _group_below(here: Path, marks: Sequence[int]) -> Path | None:
    """Where the group of the last of these marks is to be made."""
    top, *below = _names(marks)
    for place in (here, *here.parents):
        if place.name == top:
            return place.joinpath(*below)
    if below or not _is_delegated(_base(here)):
        return None
    clear()
    return here / top


def _is_delegated(folder: Path) -> bool:
    """Whether its manager delegates it to this user. systemd sets the attribute for root, and since 251 for the owner."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _names(marks: Sequence[int]) -> list[str]:
    first, *others = (f"{mark:016x}" for mark in marks)
    return [f"governor-{first}", *others]


def _groups(folder: Path) -> list[re.Match[str]]:
    """The groups that this folder is, or is in; the innermost is the last."""
    return list(_GROUP.finditer(str(folder)))


def _groups_in(folder: Path) -> list[Path]:
    """The groups of the daemons that were started in this folder."""
    return [group for group in folder.glob("governor-*") if _GROUP.fullmatch(f"/{group.name}")]


def _above(group: re.Match[str]) -> Path:
    return Path(group.string[: group.start()])


def _base(folder: Path) -> Path:
    """Where the outermost group that this folder is in was made; itself where it is in none."""
    groups = _groups(folder)
    return _above(groups[0]) if groups else folder


def _mark(folder: Path) -> int | None:
    found = _groups(folder)
    return int(found[-1][0][-16:], 16) if found else None


def _folders(group: Path) -> Iterator[Path]:
    """All folders in it, and itself as the last."""
    return (Path(folder) for folder, _, _ in os.walk(group, topdown=False))


def _members(folder: Path) -> list[int]:
    """The pids in it, without processes that have no number in this namespace."""
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split() if pid != "0"]
    except OSError:  # it was removed
        return []


def _write(file: Path, text: bytes) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text)
    finally:
        os.close(handle)


@functools.cache
def _mount() -> tuple[Path, Path]:
    """The root of the mounted cgroup v2 hierarchy, and its mount point; paths that match nothing where there is none."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] == "cgroup2":
            return Path(fields[3]), Path(fields[4])
    return NOWHERE, NOWHERE
