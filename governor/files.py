"""Files of runs: those that are there whole or not at all, those that only grow, and names for them.

Rules:
1. What is written whole has another name until it is on disk, and its folder is synced before anything that it replaces
   is removed: a loss of power leaves the old file or the new one.
2. A write to a growing file that fails leaves no trace, so that the next one may succeed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from pathlib import Path

SAFE: Final = " !#$&()+,;=@[]^{}~"


def name_of(text: str) -> str:
    """A phase may be called anything: what cannot stand in a file name is percent-encoded."""
    return quote(text, safe=SAFE)


def temporary(path: Path) -> Path:
    """The name under which a file is written before it is whole."""
    return path.with_name(f".{path.name}.part")


def write_whole(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Makes its folder, too. Without `sync` it outlives this process, but not a loss of power. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = temporary(path)
    try:
        part.write_bytes(data)
        if sync:
            put_in_place(part, path)
        else:
            part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def put_in_place(part: Path, path: Path) -> None:
    """A file that is written gets its name, for good. Raises OSError."""
    sync_to_disk(part)
    part.replace(path)
    sync_to_disk(path.parent)


def sync_to_disk(path: Path) -> None:
    """A file, or the names in a folder. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def append(file: int, data: bytes | bytearray | memoryview) -> None:
    """All of it at the end of a file opened for that, in the kernel; or nothing of it, and OSError."""
    size = os.fstat(file).st_size
    with memoryview(data) as left:
        written = 0
        try:
            while written < len(left):
                written += os.write(file, left[written:])  # a disk that fills up takes a part of it first
        except OSError:
            os.ftruncate(file, size)
            raise
