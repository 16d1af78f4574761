"""Removes a folder with all that is in it, a little at a time. No link is followed, also none that appears meanwhile. Folders that
their owner may not write to, as some caches of packages are, are made writable.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEP_SECONDS: Final = 0.02
"""The time that a step takes, if no file takes longer."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Removal:
    """`files` and `bytes` are what was removed so far. What can't be removed stays."""

    def __init__(self, folder: Path) -> None:
        self.files = self.bytes = 0
        self._folder = folder
        self._freed = _remove(folder)

    def step(self) -> bool:
        """Goes on for `STEP_SECONDS`; returns whether there is more to do. Blocks."""
        until = time.monotonic() + STEP_SECONDS
        for freed in self._freed:
            self.files += 1
            self.bytes += freed
            if time.monotonic() >= until:
                return True
        return False

    @property
    def left(self) -> bool:
        """Whether the folder is still there."""
        return os.path.lexists(self._folder)


def remove(folder: Path) -> None:
    """All at once. What can't be removed stays. Blocks."""
    removal = Removal(folder)
    while removal.step():
        pass


def _remove(folder: Path) -> Iterator[int]:
    """The bytes that each file has freed, as it is removed. Folders that are open wait on a stack: they may be deep."""
    open_folders: list[tuple[str, int, Iterator[os.DirEntry[str]]]] = []
    try:
        with suppress(OSError):
            open_folders.append(_opened(str(folder)))
        while open_folders:
            name, fd, entries = open_folders[-1]
            entry = _next(entries)
            if entry is None:
                open_folders.pop()
                os.close(fd)
                with suppress(OSError):
                    os.rmdir(name, dir_fd=open_folders[-1][1] if open_folders else None)
                continue
            freed = None
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    open_folders.append(_opened(entry.name, fd))
                else:
                    status = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
                    os.unlink(entry.name, dir_fd=fd)
                    freed = _freed_by(status)
            if freed is not None:
                yield freed
    finally:
        for _, fd, _ in open_folders:
            os.close(fd)


def _opened(name: str, within: int | None = None) -> tuple[str, int, Iterator[os.DirEntry[str]]]:
    try:
        fd = os.open(name, _FOLDER, dir_fd=within)
    except PermissionError:
        _make_writable(name, within)
        fd = os.open(name, _FOLDER, dir_fd=within)
    try:
        if ~os.fstat(fd).st_mode & stat.S_IRWXU:
            with suppress(OSError):  # it is another user's
                os.fchmod(fd, stat.S_IRWXU)
        return name, fd, os.scandir(fd)
    except OSError:
        os.close(fd)
        raise


def _make_writable(name: str, within: int | None) -> None:
    """Of a folder that can't be read, either; no link is followed. Raises OSError."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IRWXU)  # noqa: PTH101  # fchmod refuses such a descriptor
    finally:
        os.close(fd)


def _next(entries: Iterator[os.DirEntry[str]]) -> os.DirEntry[str] | None:
    """None at the end, and where the folder can't be read any further."""
    try:
        return next(entries, None)
    except OSError:
        return None


def size(folder: Path) -> int:
    """Bytes on the disk that removing a folder frees. Blocks."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it is gone already
                total += _freed_by(os.lstat(os.path.join(path, name)))  # noqa: PTH118  # of a large tree
    return total


def _freed_by(status: os.stat_result) -> int:
    """Nothing if another run has the file, too."""
    return status.st_blocks * 512 if status.st_nlink == 1 else 0
