"""One daemon per state directory and runtime directory: the kernel releases the locks however their holder ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from governor.errors import AlreadyServed, NotPermitted
from governor.journal import disk_reserve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

NAME = "governor.lock"


class StateLock:
    """A context manager. Raises AlreadyServed with the holder's pid, NotPermitted when the folder belongs to another
    user, NoRoom when its disk is full or read-only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None

    def __enter__(self) -> None:
        path = self._folder / NAME
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise disk_reserve.no_room(path, error) or NotPermitted(
                f"{path} can't be opened: {error.strerror}; check the folder's owner"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            raise AlreadyServed(str(self._folder), int(holder) if holder.isdigit() else None) from None
        try:
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
        except OSError as error:
            os.close(fd)
            raise disk_reserve.no_room(path, error) or error from None
        self._fd = fd

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


@contextmanager
def runtime_lock(folder: Path) -> Iterator[None]:
    """Locks the folder itself, because the daemon clears its content. Raises AlreadyServed, NotPermitted."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NotPermitted(f"{folder} can't be opened: {error.strerror}; check the folder's owner") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyServed(str(folder), None, kind="runtime") from None
        yield
    finally:
        os.close(fd)
