"""The disk of the state directory: its free space, and a reserve for an orderly shutdown.

Rules:
1. A daemon starts only if there is room for the reserve and as much again to work in.
2. When the disk is full, what can be spared is dropped first (`relieve`). Where that does not help, the reserve is released: the room is used to record pending changes and the interruption of the
   runs, and the daemon shuts down in order.
3. A disk is also full without inodes, or when a quota is used up. No figure of the disk shows a quota, so a file is
   written to find out.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.errors import NoRoom
from governor.units import sizes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME: Final = "governor.reserve"
RESERVE_BYTES: Final = 4 << 20
LEAST_FILES: Final = 128
"""The number of files for which a disk must have room when a daemon starts, or a run is accepted."""
FULL_FILES: Final = 32
"""With room for fewer files a disk counts as full: after a failure some files have been removed again."""
TRIED_BYTES: Final = 4096
"""Size of the test file in the folder of sockets."""
RELIEVED: Final = 20
"""Times that an operation finds the disk full again, after what could be spared was dropped: a process may fill it at once."""
READ_ONLY: Final = frozenset({errno.EROFS})
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_OF_SQLITE: Final = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
)
"""WRITE: the write-ahead log can't grow; SHMSIZE: its index can't."""

log = logs.get_logger()


def is_full(error: BaseException) -> bool:
    """Whether a full disk may be the cause."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) in _FULL_OF_SQLITE
    return isinstance(error, OSError) and error.errno in FULL


def no_room(path: Path, error: OSError) -> NoRoom | None:
    """The error for a full or read-only disk; None for other errors."""
    if error.errno not in FULL | READ_ONLY:
        return None
    return NoRoom(
        f"{path} can't be written: {error.strerror}; "
        + ("mount its disk writable" if error.errno in READ_ONLY else "make room on its disk")
    )


def files_left(folder: Path) -> int | None:
    """The number of files for which its disk has room; None where the file system has no limit."""
    disk = os.statvfs(folder)
    return disk.f_favail if disk.f_files else None


def require(folder: Path, least: int) -> None:
    """Raises NoRoom where the disk of the folder has less than `least` bytes or `LEAST_FILES` files left."""
    _require(
        folder, least, f", and a run is taken with {sizes.text(least)} (disk_reserve)", "`governor prune`"
    )


def _require(folder: Path, least: int, reason: str, advice: str) -> None:
    files = files_left(folder)
    free = shutil.disk_usage(folder).free
    if files is not None and files < LEAST_FILES:
        missing = f"room for {files} more files (`df -i`), and {LEAST_FILES} are the least"
    elif free < least:
        missing = f"{sizes.text(free)} left{reason}"
    else:
        return
    raise NoRoom(f"the disk of {folder} has {missing}: make room ({advice})")


class Reserve:
    """A file of some megabytes. `on_used` is called once, in any thread, with the reason when it is given up. `sockets` is
    another folder that must have room. `allocate` reserves the room of an open file, or raises OSError.
    """

    def __init__(
        self,
        folder: Path,
        *,
        size: int = RESERVE_BYTES,
        on_used: Callable[[NoRoom], object] = lambda _: None,
        sockets: Path | None = None,
        allocate: Callable[[int, int, int], None] = os.posix_fallocate,
    ) -> None:
        self.path = folder / NAME
        self.size = size
        self.relieve: Callable[[], bool] = lambda: False
        """Frees room that others can spare, and says whether there was any; in any thread."""
        self._sockets = sockets
        self._allocate = allocate
        self._on_used = on_used
        self._lock = threading.Lock()
        self._was_used = False

    def take(self) -> None:
        """Creates the file. Raises NoRoom, and then leaves no file."""
        folder = self.path.parent
        reason = f" beside the reserve, and a daemon starts with {sizes.text(self.size)}"
        try:
            self._make(self.path, self.size)
            _require(folder, self.size, reason, f"`governor prune --state-dir {folder}`")
        except (OSError, NoRoom) as error:
            self.release()
            missing = no_room(self.path, error) if isinstance(error, OSError) else None
            if missing is None:
                raise
            raise missing from error

    def make_room(self, error: BaseException, *, tried: int = 0) -> bool:
        """Drops what others can spare; where there is nothing, or `tried` says that it did not help so often, gives up the reserve.
        Whether there was any.
        """
        return (tried < RELIEVED and self.relieve()) or self.give_up(error)

    def give_up(self, error: BaseException) -> bool:
        """Removes the file, and calls `on_used`; returns whether there was one."""
        with self._lock:
            if not self.release():
                return False
            self._was_used = True
        log.error("disk.full", reserve=str(self.path), bytes=self.size, reason=str(error))
        self._on_used(
            NoRoom(
                f"the disk of {self.path.parent} is full ({error}); runs in work are interrupted, and go on at the "
                "next start: make room first"
            )
        )
        return True

    def is_needed(self) -> bool:
        """Whether the disk is full, or was: then the reserve is given up, and other failures may have that cause."""
        if not self._was_used and self._refusal() is not None:
            self.relieve()
            if (error := self._refusal()) is not None:
                self.give_up(error)
        return self._was_used

    def _refusal(self) -> OSError | None:
        """The error with which a file of the size of the reserve, or a socket, can't be created now; None where it can, or where
        that is unknown: a folder that is gone is not full.
        """
        tried = [(self.path.parent, self.size), *([(self._sockets, TRIED_BYTES)] if self._sockets else [])]
        for folder, size in tried:
            try:
                free, files = shutil.disk_usage(folder).free, files_left(folder)
            except OSError:
                continue
            if free < size or (files is not None and files < FULL_FILES):
                return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
            if free < 2 * size:
                continue  # a test file would take the room that others need
            probe = folder / f".{NAME}.tried"
            try:
                self._make(probe, size)
            except OSError as error:
                if is_full(error):
                    return error
            finally:
                with suppress(OSError):
                    probe.unlink()
        return None

    def _make(self, path: Path, size: int) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._allocate(fd, 0, size)
        finally:
            os.close(fd)

    def release(self) -> bool:
        """Removes the file; returns whether there was one."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True
