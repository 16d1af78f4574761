"""The disk of the state directory: how much room it has, and a reserve for the end.

Rules:
1. Before any run is taken there is room for the reserve, and as much again to work in; else the start is refused.
2. The reserve is given up when the disk is full: what is in flight, and that the runs are interrupted, is put on record
   in its place, and the daemon goes down in order.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
from typing import TYPE_CHECKING, Final

from governor import logs, sizes
from governor.errors import NoRoom

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME: Final = "governor.reserve"
RESERVE_BYTES: Final = 4 << 20
READ_ONLY: Final = frozenset({errno.EROFS})
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_OF_SQLITE: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
"""A write-ahead log that can't grow is the one, its index the other."""

log = logs.get_logger()


def is_full(error: Exception) -> bool:
    """Whether it may be for want of room."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) in _OF_SQLITE
    return isinstance(error, OSError) and error.errno in FULL


def no_room(path: Path, error: OSError) -> NoRoom | None:
    """What an error says of the disk; None where that is not what is wrong."""
    if error.errno not in FULL | READ_ONLY:
        return None
    return NoRoom(
        f"{path} can't be written: {error.strerror}; "
        + ("mount its disk writable" if error.errno in READ_ONLY else "make room on its disk")
    )


def require(folder: Path, least: int) -> None:
    """Raises NoRoom where the disk of the folder has less than `least` bytes."""
    free = shutil.disk_usage(folder).free
    if free < least:
        raise NoRoom(
            f"the disk of {folder} has {sizes.text(free)} left, and a run is taken with {sizes.text(least)} "
            "(disk_reserve): make room (`governor prune`)"
        )


class Reserve:
    """A file of some megabytes. `on_used` hears, once and in whatever thread that was, why it was given up."""

    def __init__(
        self, folder: Path, *, size: int = RESERVE_BYTES, on_used: Callable[[NoRoom], object] = lambda _: None
    ) -> None:
        self.path = folder / NAME
        self.size = size
        self._on_used = on_used
        self._lock = threading.Lock()
        self._was_used = False

    def take(self) -> None:
        """Raises NoRoom, and leaves nothing then."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, self.size)
            finally:
                os.close(fd)
            free = shutil.disk_usage(self.path.parent).free
        except OSError as error:
            self.release()
            if (missing := no_room(self.path, error)) is None:
                raise
            raise missing from error
        if free < self.size:
            self.release()
            raise NoRoom(
                f"the disk of {self.path.parent} has {sizes.text(free)} left beside the reserve, and a daemon starts with "
                f"{sizes.text(self.size)}: make room (`governor prune --state-dir {self.path.parent}`)"
            )

    def give_up(self, error: Exception) -> bool:
        """Whether there was one still."""
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
        """Whether the disk is full by now, so that it is given up, or was: what fails then may fail for that."""
        if not self._was_used and shutil.disk_usage(self.path.parent).free < self.size:
            self.give_up(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        return self._was_used

    def release(self) -> bool:
        """Gives the room back. Whether there was any."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True
