"""One daemon per state directory and runtime directory: the kernel releases the locks however their holder ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from governor.errors import AlreadyServed, NotPermitted
from governor.journal import disk_reserve

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "governor.lock"


@contextmanager
def state_lock(folder: Path) -> Iterator[None]:
    """Locks a file in the folder, which names the holder. Raises AlreadyServed with the holder's pid, NotPermitted when the
    folder belongs to another user, NoRoom when its disk is full or read-only.
    """
    path = folder / NAME
    with _opened(path, os.O_RDWR | os.O_CREAT) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 32).decode(errors="replace").strip()
            raise AlreadyServed(str(folder), int(holder) if holder.isdigit() else None) from None
        try:
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
        except OSError as error:
            raise disk_reserve.no_room(path, error) or error from None
        try:
            yield
        finally:
            os.ftruncate(fd, 0)


def is_served(folder: Path) -> bool:
    """Whether a daemon has locked this state folder, as far as its file says. Takes no lock: a daemon may be about to start."""
    try:
        return Path("/proc", (folder / NAME).read_text().strip() or "-").exists()
    except (OSError, ValueError):
        return False


@contextmanager
def runtime_lock(folder: Path) -> Iterator[None]:
    """Locks the folder itself, because the daemon clears its content. Raises AlreadyServed, NotPermitted."""
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyServed(str(folder), None, kind="runtime") from None
        yield


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    try:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise disk_reserve.no_room(path, error) or NotPermitted(
            f"{path} can't be opened: {error.strerror}; check the folder's owner"
        ) from error
    try:
        yield fd
    finally:
        os.close(fd)
