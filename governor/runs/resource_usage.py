"""Measures what a run uses where it has a limit: memory of its processes, disk space of its folder.

Rules:
1. Memory is PSS: a page shared by several processes, such as those of the forkserver, is divided among them. For a
   process that may not be inspected it is the resident size. A process that exits during the measurement counts as 0.
2. The processes of a run are its conductors and all processes that bear their marks or descend from them: the runners
   on this machine, and what either started in other sessions. The data come from the kernel, so no process that may
   hang is asked.
3. Disk space is what files occupy, as with `du`: a file with several names counts once, links are not followed.
4. A thread measures, for at most a twentieth of the time: large runs are measured less often. If it hangs (a process
   in uninterruptible sleep, a folder on an unreachable server) nothing waits for it, not even the daemon's exit.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.episodes.entries import in_daemon_thread
from governor.processes import kill_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from governor.runs.active_run import ActiveRun

EVERY_SECONDS: Final = 2.0
SHARE: Final = 20
"""The pause after a measurement is at least so many times its duration."""
_BLOCK: Final = 512
"""Bytes: the unit of `st_blocks` on every file system."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

log = logs.get_logger()


class Meter:
    """Measures one run for its limits of memory and disk, and posts `LimitExceeded`."""

    def __init__(self, active: ActiveRun) -> None:
        self._run = active
        self._limits = active.assignment.run.limits
        self._cancelled = threading.Event()

    async def run(self) -> None:
        """Measures until it is cancelled; does not wait for a measurement under way: it ends soon, in its thread."""
        if self._limits.memory is None and self._limits.disk is None:
            return
        failed = False
        try:
            while True:
                begin = time.monotonic()
                marks = {child.pid: child.mark for child in self._run.effects.processes.values()}
                try:
                    measured = await in_daemon_thread(partial(self._measure, marks), name="usage")
                except Exception:
                    if not failed:
                        log.exception("usage.not_measured", run=self._run.uid)
                    failed = True
                else:
                    failed = False
                    self._run.limits.used |= measured
                    if (exceeded := self._run.limits.exceeded(*self._run.stamp)) is not None:
                        self._run.post(exceeded)
                await asyncio.sleep(max(EVERY_SECONDS, SHARE * (time.monotonic() - begin)))
        finally:
            self._cancelled.set()

    def _measure(self, marks: Mapping[int, int]) -> dict[str, int]:
        found = {}
        if self._limits.memory is not None:
            found["memory"] = memory_of(run_pids(marks))
        if self._limits.disk is not None:
            found["disk"] = disk_of(self._run.folder, cancelled=self._cancelled)
        return found


# -- memory --------------------------------------------------------------------------------------------------------


def run_pids(conductors: Mapping[int, int]) -> set[int]:
    """The pids of a run, from its conductors' pids and marks."""
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
        with open(f"/proc/{pid}/smaps_rollup") as rollup:  # noqa: PTH123  # a Path is as slow again
            line = next((line for line in rollup if line.startswith("Pss:")), "Pss: 0 kB")
        return int(line.split()[1]) * 1024
    except ProcessLookupError:
        return 0
    except (FileNotFoundError, PermissionError):  # it has exited, or the kernel shows no more
        return _resident(pid)


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (FileNotFoundError, ProcessLookupError):
        return 0


# -- disk ----------------------------------------------------------------------------------------------------------


def disk_of(folder: Path, *, cancelled: threading.Event | None = None) -> int:
    """Bytes on disk of everything below `folder`; if `cancelled`, of what was seen until then."""
    total = 0
    several: set[tuple[int, int]] = set()
    folders = [os.fspath(folder)]
    while folders and not (cancelled is not None and cancelled.is_set()):
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    total += _disk(entry, folders, several)
        except (FileNotFoundError, NotADirectoryError, PermissionError):  # removed meanwhile, or not readable
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
