"""The files of a run as the daemon hands them out: what lies in its folder, in pieces, and nothing else.

Rule: a link is not followed, wherever it stands in a path: user code may have made it, to a file that is nobody else's affair.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from governor.errors import UsageError
from governor.messages.files import PIECE_BYTES, FileEntry, FilePiece

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST: Final = 2_000
"""Files in one answer."""
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


def listing(folder: Path, after: str) -> tuple[tuple[FileEntry, ...], bool]:
    """The first files behind the path `after`, and whether there are more. Blocks."""
    found = sorted(path for path in _paths(folder, "") if path > after)
    entries = [entry for path in found[:MOST] if (entry := _entry(folder, path)) is not None]
    return tuple(entries), len(found) > MOST


def piece(folder: Path, path: str, offset: int) -> FilePiece:
    """A part of a file. Blocks. Raises UsageError for what is no file of the run."""
    try:
        with open(_opened(folder, path), "rb") as file:  # by its descriptor
            file.seek(offset)
            data, found = file.read(PIECE_BYTES), os.fstat(file.fileno())
            return FilePiece(data=data, number=found.st_ino, changed=found.st_mtime_ns)
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(f"the run has no file {path!r} ({error})") from error


def _opened(folder: Path, path: str) -> int:
    """The descriptor of a regular file, found part by part without following any link. Raises OSError, ValueError."""
    *above, name = path.split("/")
    if not name or any(part in ("", ".", "..") for part in (*above, name)):
        raise ValueError("no path below the folder")
    place = os.open(folder, _FLAGS | os.O_DIRECTORY)
    try:
        for part in above:
            inner = os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=place)
            os.close(place)
            place = inner
        opened = os.open(name, _FLAGS | os.O_NONBLOCK, dir_fd=place)
    finally:
        os.close(place)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise ValueError("no regular file")
    return opened


def _paths(folder: Path, below: str) -> Iterator[str]:
    """Of all regular files; a folder that goes meanwhile is left out."""
    try:
        entries = [*os.scandir(folder / below)]
    except OSError:
        return
    for entry in entries:
        path = f"{below}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _paths(folder, f"{path}/")
        elif entry.is_file(follow_symlinks=False):
            yield path


def _entry(folder: Path, path: str) -> FileEntry | None:
    """None for one that has gone, or whose name is no text."""
    try:
        path.encode()
        found = os.lstat(folder / path)
    except (OSError, UnicodeEncodeError):
        return None
    return FileEntry(path=path, size=found.st_size, changed=found.st_mtime_ns, number=found.st_ino)
