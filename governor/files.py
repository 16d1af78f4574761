"""Files: atomic writes, appends that succeed or change nothing, names for files, and whether one is still in place.

Rules:
1. A file that is written whole has a temporary name until it is on disk, and its folder is synced before anything that it
   replaces is removed: a loss of power leaves the old file or the new one.
2. A write to a growing file that fails leaves no trace, so that the next one may succeed.
"""

from __future__ import annotations

import os
import stat
from errno import EINVAL, EMLINK
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

SAFE: Final = " !#$&()+,;=@[]^{}~"
_UNKNOWN: Final = (-1, -1)


def name_of(text: str) -> str:
    """A file name for any text (a phase's name, for one): other characters are percent-encoded."""
    return quote(text, safe=SAFE)


def temporary(path: Path) -> Path:
    """The name of a file while it is being written."""
    return path.with_name(f".{path.name}.part")


def write_whole(path: Path, data: bytes, *, sync: bool = True, mode: int = 0o666) -> None:
    """Makes its folder, too. Without `sync` the file survives this process, but not a loss of power. Raises OSError, which names the
    file also where the system does not, as for a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = temporary(path)
    try:
        with os.fdopen(
            os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb"
        ) as file:
            file.write(data)
        if sync:
            put_in_place(part, path)
        else:
            part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        error.filename = error.filename or str(path)
        raise


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """As `write_whole`, for what is too much for the memory. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = temporary(path)
    try:
        with part.open("wb") as file:
            file.writelines(lines)
        put_in_place(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        error.filename = error.filename or str(path)
        raise


def put_in_place(part: Path, path: Path) -> None:
    """Gives a complete file its final name, durably. Raises OSError."""
    sync_to_disk(part)
    part.replace(path)
    sync_to_disk(path.parent)


def sync_to_disk(path: Path) -> None:
    """Syncs a file, or the names in a folder. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_regular(path: Path, flags: int) -> int:
    """The descriptor of a file in a folder that user code can write to: follows no symbolic link, and waits for nobody at a FIFO.
    Raises OSError, also if it is no regular file, or is to be written and has several names: it may be another file of the user.
    """
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    status = os.fstat(file)
    error = OSError(EINVAL, "it is no regular file", str(path))
    if stat.S_ISREG(status.st_mode):
        if status.st_nlink < 2 or not flags & (os.O_WRONLY | os.O_RDWR):
            return file
        error = OSError(EMLINK, "it has several names", str(path))
    os.close(file)
    raise error


def read_regular(path: Path) -> bytes:
    """What is in a file of the user, which may be a link to one. Raises OSError, also for what would have no end, as a FIFO or a device."""
    with open(path, "rb", opener=_without_waiting) as file:  # a Path takes none
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(EINVAL, "it is no regular file", str(path))
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def append(file: int, data: bytes | bytearray | memoryview) -> None:
    """Appends all of `data` to a file opened for appending; or nothing of it, and raises OSError."""
    size = os.fstat(file).st_size
    with memoryview(data) as left:
        written = 0
        try:
            while written < len(left):
                written += os.write(file, left[written:])  # a disk that becomes full accepts a part first
        except OSError:
            os.ftruncate(file, size)
            raise


class WatchedFiles:
    """Remembers the identity of files at construction; of those in `later`, when they first exist."""

    def __init__(self, *paths: Path, later: Sequence[Path] = ()) -> None:
        self._seen = {path: _identity(path) for path in (*paths, *later)}
        self._late = {path for path in later if self._seen[path] is None}

    def removed(self) -> list[Path]:
        """Paths that no longer exist, or that another file has replaced."""
        now = {path: _identity(path) for path in self._seen}
        for path in [path for path in self._late if now[path] is not None]:
            self._late.remove(path)
            self._seen[path] = now[path]
        return [
            path
            for path, seen in self._seen.items()
            if path not in self._late
            and _UNKNOWN not in (seen, now[path])
            and (now[path] is None or now[path] != seen)
        ]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # a failing disk or server is reported elsewhere
        return _UNKNOWN
    return found.st_dev, found.st_ino
