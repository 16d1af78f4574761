"""The code of a run: the files of code below its run file's folder, their digest, and which of them have changed.

Rules:
1. Hidden folders, caches, environments of packages and state folders of daemons are not looked at, nor are large files.
2. A folder that has more than is looked at has a digest of its first files, which tells of no change.
3. A file has changed if its inode has since then (``ctime``): a copy or a checkout of an older file counts.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from governor.network.packages import is_own

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from governor.messages import RunEvent

MOST_FILES: Final = 2_000
MOST_BYTES: Final = 20 << 20
MOST_SECONDS: Final = 5.0
"""For looking through a folder that has much else in it, or is on a slow disk."""
SUFFIXES: Final = frozenset({".py", ".yaml", ".yml", ".toml", ".json", ".cfg"})
KEY: Final = "code"
CHANGED: Final = "run.code_changed"
"""The event; its data are those of `changed`."""
NAMED: Final = 20
"""Changed files that are named."""
_SMALL: Final = 1 << 20
"""Larger files are data."""
_PART: Final = "the first "
_TICK: Final = 1.0
"""Seconds: the clocks of file systems are coarse."""
_REMEMBERED: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What is on record of a run's code since it was submitted: its `digest`, "" where that is not known, and of a copy what it is
    `copied` from: the folder, and its work tree then (`work_tree.describe`).
    """

    at: float = 0.0
    digest: str = ""
    copied: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, accepted: RunEvent | None) -> Self:
        """From the first event of the run."""
        found = {} if accepted is None else accepted.data.get(KEY) or {}
        at = 0.0 if accepted is None else accepted.at
        return cls(at=at, digest=found.get("digest", ""), copied=found.get("copied", {}))

    @property
    def data(self) -> dict[str, Any]:
        """What `of` reads, in the event's data below `KEY`."""
        return {"digest": self.digest} | ({"copied": self.copied} if self.copied else {})


def digest(folder: Path, *, seconds: float = MOST_SECONDS) -> str:
    """Of the names and contents of the files of code below the folder, in their order. Blocks."""
    found, files, size = blake2b(digest_size=16), 0, 0
    is_whole = True
    for file in _files(folder, until=time.monotonic() + seconds):
        if file is None or files >= MOST_FILES or size >= MOST_BYTES:
            is_whole = False
            break
        with suppress(OSError):
            found.update(f"{file.name}\0{file.status.st_size}\0".encode("utf-8", "surrogateescape"))
            found.update(_content_digest(file))
            files, size = files + 1, size + file.status.st_size
    return f"{found.hexdigest()} ({'' if is_whole else _PART}{files} file{'' if files == 1 else 's'})"


def changed(folder: Path, *, known: str, now: str, since: float, when: str) -> dict[str, Any] | None:
    """What has changed below the folder between two digests, the first one made at the time `since`; None: nothing, or that cannot be
    told. `when` says what happened then. Blocks.
    """
    if known == now or not known or _PART in known + now:
        return None
    names = []
    for file in _files(folder, until=time.monotonic() + MOST_SECONDS):
        if file is None:
            break
        if file.status.st_ctime > since:
            names.append(file.name)
    return {"since": when, "files": names[:NAMED], "more": len(names[NAMED:]), "code": now}


def sentence(data: Mapping[str, Any]) -> str:
    """The data of an event `CHANGED`, for people."""
    names, more = list(data.get("files", ())), data.get("more", 0)
    if not names:
        return f"files of its code were moved or removed since {data.get('since')}"
    what = ", ".join(names) + (f" and {more} more" if more else "")
    return f"{what} {'has' if len(names) + more == 1 else 'have'} changed since {data.get('since')}"


@dataclass(frozen=True, slots=True)
class _File:
    """`name`: its path below the folder."""

    path: str
    name: str
    status: os.stat_result


def _files(folder: Path, *, until: float) -> Iterator[_File | None]:
    """Of each folder the files, then what is below its folders, by name. None, when it took too long: there is more."""
    open_folders = [(str(folder), "")]
    while open_folders:
        place, prefix = open_folders.pop()
        below = []
        with suppress(OSError), os.scandir(place) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                if time.monotonic() > until:
                    yield None
                    return
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        below.append((entry.path, f"{prefix}{entry.name}/"))
                    elif os.path.splitext(entry.name)[1] in SUFFIXES:  # noqa: PTH122  # of thousands
                        status = entry.stat()
                        if stat.S_ISREG(status.st_mode) and status.st_size < _SMALL:
                            yield _File(entry.path, f"{prefix}{entry.name}", status)
        open_folders += [each for each in reversed(below) if is_own(Path(each[0]))]


_known: dict[str, tuple[tuple[int, ...], bytes]] = {}
"""Of files that were read before: their stamps, and the digests of their contents. A thousand runs are submitted from one folder."""


def _content_digest(file: _File) -> bytes:
    """Raises OSError."""
    status = file.status
    stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    known = _known.get(file.path)
    if known is not None and known[0] == stamp:
        return known[1]
    is_old = time.time() - status.st_ctime > _TICK  # else it may be written again without another stamp
    found = blake2b(Path(file.path).read_bytes(), digest_size=16).digest()
    if is_old:
        if len(_known) >= _REMEMBERED:
            _known.clear()
        _known[file.path] = (stamp, found)
    return found
