"""What a run uses of its machine, measured where it has a limit: memory of its processes, disk of its folder.

Rules:
1. Memory is PSS: a page that several processes share, as those of the forkserver, counts once, in parts. Of a process that
   may not be looked into it is what is resident. Whoever ends while it is measured uses nothing.
2. The processes of a run are its conductors and all that bear their marks or are below them: the runners on this machine,
   and what either has started in sessions of its own, too. The kernel tells: nobody is asked who might hang.
3. Disk is what files take, as `du` has it: a file with several names counts once, a link is not followed.
4. Measuring is in a thread, and takes a twentieth of the time at most: what is large is measured less often. Where it hangs
   (a process in an uninterruptible sleep, a folder of a server that is gone) nothing waits for it, the daemon's exit neither.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from governor import logs
from governor.episodes.entries import in_daemon_thread
from governor.messages import LimitUse
from governor.processes import kill_tree
from states.events import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from governor.runs.assignment import Assignment
    from governor.runs.limits import RunLimits
    from states.events import Event

EVERY_SECONDS: Final = 2.0
SHARE: Final = 20
"""Of the time that a measurement takes, its pause has at least so much."""
_BLOCK: Final = 512
"""Bytes, in which `st_blocks` counts whatever the file system."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

log = logs.get_logger()


class MeasuredConductors(Protocol):
    """Whose processes are measured; `EffectRunner` is one."""

    @property
    def processes(self) -> Mapping[str, Process]: ...


class Process(Protocol):
    @property
    def pid(self) -> int: ...
    @property
    def mark(self) -> int: ...


class Meter:
    """Measures a run from its construction to `aclose`, and posts `LimitExceeded` once; without a limit it measures nothing."""

    def __init__(
        self,
        *,
        assignment: Assignment,
        folder: Path,
        conductors: MeasuredConductors,
        post: Callable[[Event], None],
    ) -> None:
        self._run = assignment.uid
        self._limits = assignment.run.limits
        self._folder = folder
        self._conductors = conductors
        self._post = post
        self._measured: dict[str, int] = {}
        self._told = False
        self._given_up = threading.Event()
        self._task: asyncio.Task[None] | None = None
        if self._limits.memory is not None or self._limits.disk is not None:
            self._task = asyncio.create_task(self._measure_on(), name=f"{self._run}.usage")

    def uses(self, budget: RunLimits | None) -> tuple[LimitUse, ...]:
        """Of each limit that is set and is no time."""
        used = {**self._measured, **(budget.spent if budget is not None else {})}
        return tuple(
            LimitUse(limit=name, allowed=allowed, used=used.get(name))
            for name, allowed in self._limits.amounts
        )

    async def aclose(self) -> None:
        """Waits for no measurement: one that is under way ends in its thread, soon."""
        self._given_up.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _measure_on(self) -> None:
        failed = False
        while True:
            begin = time.monotonic()
            marks = {process.pid: process.mark for process in self._conductors.processes.values()}
            try:
                self._measured = await in_daemon_thread(partial(self._measure, marks), name="usage")
            except Exception:
                if not failed:
                    log.exception("usage.not_measured", run=self._run)
                failed = True
            else:
                failed = False
                self._tell()
            await asyncio.sleep(max(EVERY_SECONDS, SHARE * (time.monotonic() - begin)))

    def _measure(self, marks: Mapping[int, int]) -> dict[str, int]:
        found = {}
        if self._limits.memory is not None:
            found["memory"] = memory_of(family(marks))
        if self._limits.disk is not None:
            found["disk"] = disk_of(self._folder, given_up=self._given_up)
        return found

    def _tell(self) -> None:
        for limit, allowed in self._limits.amounts:
            reached = self._measured.get(limit, 0)
            if reached > allowed and not self._told:
                self._told = True
                self._post(
                    LimitExceeded(
                        run=self._run, at=time.monotonic(), limit=limit, value=allowed, reached=reached
                    )
                )


# -- memory --------------------------------------------------------------------------------------------------------


def family(conductors: Mapping[int, int]) -> set[int]:
    """The pids of a run, from those of its conductors, with their marks."""
    by_mark = kill_tree.marked()
    return {
        *conductors,
        *kill_tree.descendants(*conductors),
        *(pid for mark in conductors.values() for pid in by_mark.get(mark, ())),
    }


def memory_of(pids: Iterable[int]) -> int:
    return sum(map(_memory, pids))


def _memory(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as told:  # noqa: PTH123  # a Path is as slow again
            line = next((line for line in told if line.startswith("Pss:")), "Pss: 0 kB")
        return int(line.split()[1]) * 1024
    except ProcessLookupError:
        return 0
    except (FileNotFoundError, PermissionError):  # it is gone, or a kernel does not tell more of it
        return _resident(pid)


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (FileNotFoundError, ProcessLookupError):
        return 0


# -- disk ----------------------------------------------------------------------------------------------------------


def disk_of(folder: Path, *, given_up: threading.Event | None = None) -> int:
    """Bytes on the disk of all that is below; of what was seen until it is `given_up`."""
    total = 0
    several: set[tuple[int, int]] = set()
    folders = [os.fspath(folder)]
    while folders and not (given_up is not None and given_up.is_set()):
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    total += _disk(entry, folders, several)
        except (FileNotFoundError, NotADirectoryError, PermissionError):  # gone meanwhile, or closed to us
            continue
    return total


def _disk(entry: os.DirEntry[str], folders: list[str], several: set[tuple[int, int]]) -> int:
    try:
        found = entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.path)
    except FileNotFoundError:
        return 0
    if found.st_nlink > 1:
        name = found.st_dev, found.st_ino
        if name in several:
            return 0
        several.add(name)
    return found.st_blocks * _BLOCK
