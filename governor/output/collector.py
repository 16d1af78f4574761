"""The collector: a thread of the daemon that turns the spools of the runs at work into lines.

Rules:
1. It looks at all spools several times a second while a run is at work; a line is in the run's files within half a second.
2. Each process has a rate, of lines and of bytes. Of what it writes beyond it the newest is read, the rest is skipped and
   counted. All processes together have a rate of lines, too, so that the daemon's time is bounded.
3. What was read is freed on disk while a process goes on, and costs others no time at the disk.
4. Where the disk is nearly full, it looks more often, and room is left to others (`run_files`).
5. A spool that nobody holds open any more is read to its end and removed. So are those that an earlier daemon left.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from governor import logs
from governor.output import spool
from governor.output.run_files import RunFiles, free_bytes
from governor.output.spool_reader import SpoolReader
from governor.units.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from governor.messages import OutputLine

TICK_SECONDS: Final = 0.2
TIGHT_SECONDS: Final = 0.01
"""As `TICK_SECONDS`, where the disk is nearly full: within one a process must not fill the rest."""
LEAST_FREE: Final = 8 << 20
RELIEF_SECONDS: Final = 5.0
LINES_PER_SECOND: Final = 10_000
"""Of all processes together."""
END_SECONDS: Final = 60.0
"""A run's end waits no longer for its lines: a file system may hang."""

log = logs.get_logger()


class OutputLimits(Protocol):
    """Bytes that the lines of a run may take; lines and bytes a second of each stream of a process."""

    run_bytes: int
    lines_per_second: int
    bytes_per_second: int


class _Run:
    def __init__(self, folder: Path, limits: OutputLimits, *, keep_free: int, mask: Mask) -> None:
        self.folder = folder
        self.mask = mask
        self.spools: dict[str, SpoolReader] = {}
        self.given_up: set[str] = set()
        """Spools that cannot be read, or not be removed."""
        self.files = RunFiles(folder.parent, limit=limits.run_bytes, keep_free=keep_free)
        self.found: dict[str, list[OutputLine]] = {}
        """By conductor, what is to be written."""
        self.is_refused = False
        """It was told that lines had no room."""
        self.is_ending = False
        self.ended = threading.Event()

    def masked(self, lines: list[OutputLine]) -> list[OutputLine]:
        if not self.mask:
            return lines
        return [msgspec.structs.replace(line, text=self.mask.text(line.text)) for line in lines]

    def take(self, reader: SpoolReader, lines: list[OutputLine]) -> None:
        if lines:
            self.found.setdefault(reader.conductor, []).extend(self.masked(lines))


class Collector:
    """`begin` and `end` a run below `runs_folder`; `close` ends the thread. `limits` returns those that count now, `reserve` the bytes of the disk that
    others need (`disk_reserve`), `mask_of` the secrets of a run, by its folder. All methods can be called in any thread.
    """

    def __init__(
        self,
        runs_folder: Path,
        limits: Callable[[], OutputLimits],
        *,
        reserve: Callable[[], int] = int,
        mask_of: Callable[[Path], Mask] = lambda _: Mask(),
    ) -> None:
        self._runs_folder = runs_folder
        self._limits = limits
        self._reserve = reserve
        self._mask_of = mask_of
        self._is_tight = False
        self._runs: dict[str, _Run] = {}
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._closed = False
        self._loud = 1
        self.kept_lines = self.dropped_lines = self.dropped_bytes = 0
        """Of all runs: what was written, and what came faster than its rate."""
        self._thread = threading.Thread(target=self._work, name="output", daemon=True)
        self._thread.start()

    def begin(self, run_folder: Path) -> None:
        """Collects the output of a run from now on, and what an earlier daemon has left of it. Raises OSError."""
        uid, folder = run_folder.name, spool.folder_of(run_folder)
        while True:
            self.end(uid)  # if it is being collected what an earlier daemon has left
            with self._lock:
                if uid not in self._runs:  # `_find_left` may have been faster
                    spool.make_folder(folder)
                    self._runs[uid] = self._run(folder)
                    break
        self._wake.set()

    def end(self, uid: str) -> None:
        """Returns when all output of the run is in its files: its processes have exited."""
        run = self._runs.get(uid)
        if run is None:
            return
        run.is_ending = True
        self._wake.set()
        if not run.ended.wait(END_SECONDS):
            log.warning("output.not_collected", run=uid, reason=f"not over within {END_SECONDS:.0f} s")
            if self._runs.get(uid) is run:
                self._runs.pop(uid, None)

    def is_collecting(self, uid: str) -> bool:
        """Whether lines of the run may follow."""
        return uid in self._runs

    def unfinished(self, uid: str) -> list[OutputLine]:
        """The lines of a run that are being written: progress bars."""
        with self._lock:
            run = self._runs.get(uid)
            if run is None:
                return []
            return run.masked([line for reader in run.spools.values() for line in reader.lines.unfinished])

    def relieve(self) -> bool:
        """Drops what is unread of all spools, because the disk is full; whether that was anything. Returns within `RELIEF_SECONDS`."""
        freed = False
        if not self._lock.acquire(timeout=RELIEF_SECONDS):
            return False
        try:
            for run in self._runs.values():
                for reader in run.spools.values():
                    with contextlib.suppress(OSError):  # it is left for the next look
                        found = reader.empty(time.time())
                        freed = freed or bool(found)
                        run.take(reader, found)
        finally:
            self._lock.release()
        return freed

    def close(self) -> None:
        """What is unread stays for the next daemon."""
        self._closed = True
        self._wake.set()
        self._thread.join()

    def _find_left(self) -> None:
        """Runs that an earlier daemon has not collected to their end."""
        for folder in self._runs_folder.glob(f"*/logs/{spool.FOLDER}"):
            with self._lock, contextlib.suppress(OSError):
                if (uid := folder.parts[-3]) not in self._runs and folder.exists():
                    self._runs[uid] = self._run(folder)
                    self._runs[uid].is_ending = True

    def _run(self, folder: Path) -> _Run:
        mask = self._mask_of(folder.parents[1])
        return _Run(folder, self._limits(), keep_free=self._keep_free(), mask=mask)

    def _keep_free(self) -> int:
        """Half of the reserve: with all of it free a run is accepted, and its first lines should have room."""
        return max(self._reserve() // 2, LEAST_FREE)

    def _look_at_disk(self) -> None:
        try:
            self._is_tight = free_bytes(self._runs_folder) < 2 * self._keep_free()
        except OSError:  # it hangs on a server, for one
            self._is_tight = False

    def _work(self) -> None:
        try:
            self._find_left()
        except OSError as error:
            log.warning("output.not_collected", reason=str(error))
        while not self._closed:
            seconds = TIGHT_SECONDS if self._is_tight else TICK_SECONDS
            if self._wake.wait(seconds if self._runs else None):
                self._wake.clear()
            self._look_at_disk()
            loud = 0
            for uid, run in list(self._runs.items()):
                try:
                    loud += self._look_at(uid, run)
                except OSError as error:  # the run's folder was removed: its own watch reports that
                    log.warning("output.not_collected", run=uid, reason=str(error))
                    self._forget(uid, run)
                except Exception:
                    log.exception("output.failed", run=uid)
                    self._forget(uid, run)
            self._loud = max(loud, 1)
        for uid, run in list(self._runs.items()):
            self._forget(uid, run)

    def _look_at(self, uid: str, run: _Run) -> int:
        """Returns how many spools have grown faster than their rate."""
        with self._lock:
            if self._runs.get(uid) is not run:  # another one has its folder now
                return 0
            limits = self._limits()
            is_ending = run.is_ending
            self._find_spools(run, limits)
            loud = self._read(uid, run, limits, is_ending=is_ending)
            lines, run.found = run.found, {}
            for conductor, found in lines.items():
                found.sort(key=lambda line: line.at)
                run.files.append(conductor, found)
                self._count(found)
            if run.files.refused_bytes and not run.is_refused:
                run.is_refused = True
                log.warning("output.no_room", run=uid, reason="the disk is nearly full: lines are dropped")
            for name, reader in list(run.spools.items()):
                try:
                    reader.done()
                except OSError as error:
                    log.warning("output.not_collected", run=uid, spool=name, reason=str(error))
                    self._leave(run, name)
            if is_ending:
                with contextlib.suppress(OSError):  # something else is in it
                    run.folder.rmdir()
                self._forget(uid, run)
            return loud

    def _read(self, uid: str, run: _Run, limits: OutputLimits, *, is_ending: bool) -> int:
        """As `_look_at`."""
        now, loud = time.time(), 0
        for name, reader in list(run.spools.items()):
            reader.lines_per_second = min(limits.lines_per_second, LINES_PER_SECOND // self._loud)
            reader.is_tight = self._is_tight
            try:
                found = reader.read(now)
                loud += reader.is_at_its_rate
                if is_ending or reader.is_over():
                    found += reader.finish(now)
                    self._leave(run, name)
            except Exception as error:  # noqa: BLE001  # the other spools of the run are read
                log.warning("output.not_collected", run=uid, spool=name, reason=repr(error))
                self._leave(run, name)
                continue
            run.take(reader, found)
        return loud

    def _count(self, lines: list[OutputLine]) -> None:
        gaps = [line.dropped for line in lines if line.dropped is not None]
        self.kept_lines += len(lines) - len(gaps)
        self.dropped_lines += sum(lines for lines, _ in gaps)
        self.dropped_bytes += sum(size for _, size in gaps)

    def _find_spools(self, run: _Run, limits: OutputLimits) -> None:
        with os.scandir(run.folder) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            path = run.folder / name
            if name.startswith(".") or path.suffix[1:] not in spool.STREAMS:
                continue
            if name in run.spools or name in run.given_up:
                continue
            with contextlib.suppress(OSError, ValueError):  # ValueError: no name of ours
                run.spools[name] = SpoolReader(
                    path,
                    lines_per_second=limits.lines_per_second,
                    bytes_per_second=limits.bytes_per_second,
                )

    def _leave(self, run: _Run, name: str) -> None:
        """Reads this spool no more, also if it is still there."""
        reader = run.spools.pop(name)
        if os.path.lexists(reader.path):
            run.given_up.add(name)
        with contextlib.suppress(OSError):
            reader.close()

    def _forget(self, uid: str, run: _Run) -> None:
        with self._lock:
            if self._runs.get(uid) is run:
                del self._runs[uid]
            try:
                for reader in run.spools.values():
                    if found := run.masked(reader.lines.leave()):
                        run.files.append(reader.conductor, found)
                        self._count(found)
                run.files.close()
            except Exception:  # the thread goes on
                log.exception("output.failed", run=uid)
            for name in list(run.spools):
                self._leave(run, name)
            run.ended.set()
