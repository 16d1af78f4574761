"""Measures what a run uses where it has a limit: memory of its processes, disk space of its folder; and what each of its
conductors uses, for its status.

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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.episodes.entries import in_daemon_thread
from governor.processes import kill_tree

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from governor.run_file.model import LimitsSection
    from governor.runs.active_run import ActiveRun

EVERY_SECONDS: Final = 2.0
SHARE: Final = 20
"""The pause after a measurement is at least so many times its duration."""
MOST_SECONDS: Final = 1.0
"""A status waits so long for the conductors' CPU and memory; else it has those that were measured before."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_CPU: Final = slice(11, 15)
_BEGAN: Final = 19
"""In /proc/PID/stat behind the name: utime, stime, cutime and cstime, and starttime, in ticks."""
_BLOCK: Final = 512
"""Bytes: the unit of `st_blocks` on every file system."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

log = logs.get_logger()


class Meter:
    """Measures one run for its limits of memory and disk, and posts `LimitExceeded`."""

    def __init__(self, active: ActiveRun) -> None:
        self._run = active
        self._cancelled = threading.Event()

    @property
    def _limits(self) -> LimitsSection:
        return self._run.assignment.run.limits

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
                    self._run.limits.measured(measured)
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


class ConductorUsage:
    """CPU and memory of each conductor of a run with all that it has started, measured when somebody asks, and once in
    `EVERY_SECONDS` at most.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, int]] = {}
        self._before: dict[str, tuple[float, float]] = {}
        self._at = -EVERY_SECONDS
        self._measuring = threading.Lock()

    def of(self, conductor: str) -> dict[str, Any]:
        """The fields `cpu` and `memory` of a `ConductorStatus`; empty before they are measured."""
        cpu, memory = self._found.get(conductor, (None, None))
        return {"cpu": cpu, "memory": memory}

    async def measure(self, pids: Mapping[str, Collection[int]]) -> None:
        """`pids` by conductor. Waits for `MOST_SECONDS` at most (rule 4)."""
        if time.monotonic() - self._at >= EVERY_SECONDS:
            self._at = time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(MOST_SECONDS):
                    await in_daemon_thread(partial(self._measure, pids), name="conductor-usage")

    def sample(self, pids: Mapping[str, Collection[int]]) -> dict[str, tuple[float, int]]:
        """CPUs in use since the sample before, and bytes, by conductor. Blocks."""
        self._measure(pids)
        return self._found

    def _measure(self, pids: Mapping[str, Collection[int]]) -> None:
        if not self._measuring.acquire(blocking=False):
            return  # the one before hangs
        try:
            found = {}
            for name, those in pids.items():
                now, used = time.monotonic(), sum(map(cpu_seconds, those))
                at, before = self._before.get(name, (now - max(map(_age, those), default=0.0), 0.0))
                # A process that has ended takes its seconds with it, if no other one of these waited for it.
                cpu = max(used - before, 0.0) / (now - at) if now > at else 0.0
                found[name] = cpu, memory_of(those)
                self._before[name] = now, used
            self._found = found
        finally:
            self._measuring.release()


def cpu_seconds(pid: int) -> float:
    """Of the process and of its children that have ended and were waited for; 0 if it is gone."""
    fields = kill_tree.read_stat(Path(f"/proc/{pid}"))
    return sum(map(int, fields[_CPU])) / _TICKS if fields else 0.0


def _age(pid: int) -> float:
    fields = kill_tree.read_stat(Path(f"/proc/{pid}"))
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_BEGAN]) / _TICKS if fields else 0.0


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
