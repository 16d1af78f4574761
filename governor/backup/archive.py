"""The file of a backup: a tar, so that it can be looked into.

Rules:
1. First comes `backup.json` (`About`), then the journal, keys and the folders of runs, at last `digest`: SHA-256 of all names and contents.
   So a backup that was cut off, or changed, is refused as a whole.
2. Nothing is compressed: steps are already.
3. What is read is not trusted: files, folders and links alone, none of them outside, nothing through a link.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tarfile
from contextlib import contextmanager
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from governor.errors import UsageError
from governor.locations import JOURNAL, KEYS, RUNS
from governor.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from governor.backup.snapshot import Entry, Snapshot

FORMAT: Final = 1
_ABOUT: Final = "backup.json"
_DIGEST: Final = "digest"
_KEPT: Final = frozenset({JOURNAL, KEYS, RUNS})
_LARGEST_ABOUT: Final = 65_536


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup says of itself. `made_at` is in seconds since 1970; `runs` are on record, `unended` of them go on."""

    format: int
    governor: str
    machine: str
    state_dir: str
    made_at: float
    runs: int
    unended: int


def write(taken: Snapshot, out: IO[bytes], *, machine: str, state_dir: Path, made_at: float) -> About:
    """Blocks. Raises OSError."""
    about = About(
        format=FORMAT,
        governor=__version__,
        machine=machine,
        state_dir=os.fsencode(state_dir).decode(errors="replace"),
        made_at=made_at,
        runs=taken.runs,
        unended=taken.unended,
    )
    digest = hashlib.sha256()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, _ABOUT, msgspec.json.format(msgspec.json.encode(about)) + b"\n", digest)
        for entry in taken.entries:
            _add_entry(tar, entry, digest)
        _add(tar, _DIGEST, digest.hexdigest().encode() + b"\n", hashlib.sha256())
    return about


def _add(tar: tarfile.TarFile, name: str, content: bytes, digest: Any) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o600
    _count(digest, info)
    tar.addfile(info, _Read(BytesIO(content), digest, size=info.size))


def _add_entry(tar: tarfile.TarFile, entry: Entry, digest: Any) -> None:
    info = tarfile.TarInfo(entry.name)
    info.mtime, info.mode = int(entry.status.st_mtime), entry.status.st_mode & 0o700
    if entry.link:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
    elif stat.S_ISDIR(entry.status.st_mode):
        info.type = tarfile.DIRTYPE
    else:
        info.size = entry.status.st_size
    _count(digest, info)
    if not info.isreg():
        tar.addfile(info)
        return
    with _file_of(entry) as file:
        tar.addfile(info, _Read(file, digest, size=info.size))


def _file_of(entry: Entry) -> IO[bytes]:
    if entry.content is not None:
        return BytesIO(entry.content)
    return entry.path.open("rb") if entry.path else os.fdopen(entry.file, "rb", closefd=False)


def _count(digest: Any, info: tarfile.TarInfo) -> None:
    size = info.size if info.isreg() else 0
    digest.update(msgspec.msgpack.encode((_plain(info.name), info.type, size, _plain(info.linkname))))


def _plain(name: str) -> str | bytes:
    """A name that is not UTF-8 as its bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name)
    return name


class _Read:
    """A file whose content is counted while it is read. Up to `size` it is filled up: lines that a run prints are made room for."""

    def __init__(self, file: IO[bytes], digest: Any, *, size: int = 0) -> None:
        self._file = file
        self._digest = digest
        self._left = size

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        data = data.ljust(min(size, self._left), b"\0")
        self._left -= len(data)
        self._digest.update(data)
        return data


def extract(file: IO[bytes], target: Path, *, name: str) -> About:
    """Into an empty folder. Blocks. Raises UsageError for what is no whole backup, with its `name`; OSError."""
    digest = hashlib.sha256()
    about: About | None = None
    with _understood(name), tarfile.open(fileobj=file, mode="r|") as tar:
        for info in tar:
            if about is None:
                about = _about(tar, info, digest, name)
            elif info.name == _DIGEST:
                told = tar.extractfile(info)
                if told is None or told.read(100).strip() != digest.hexdigest().encode():
                    raise UsageError(f"{name} has been changed: its digest is another one")
                return about
            else:
                _count(digest, info)
                _extract_one(tar, info, target, digest)
    raise UsageError(f"{name} {'is no backup' if about is None else 'has been cut off'}")


@contextmanager
def _understood(name: str) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"{name} is no backup, or has been cut off: {error}") from error


def _about(tar: tarfile.TarFile, info: tarfile.TarInfo, digest: Any, name: str) -> About:
    content = tar.extractfile(info) if info.name == _ABOUT and info.size <= _LARGEST_ABOUT else None
    if content is None:
        raise UsageError(f"{name} is no backup: it does not begin with {_ABOUT}")
    data = content.read()
    _count(digest, info)
    digest.update(data)
    given = msgspec.json.decode(data, type=dict[str, Any])
    if given.get("format") != FORMAT:
        raise UsageError(
            f"{name} was made by governor {given.get('governor')}, in a format that {__version__} does not know: restore it with that"
        )
    return msgspec.convert(given, About)


def _extract_one(tar: tarfile.TarFile, info: tarfile.TarInfo, target: Path, digest: Any) -> None:
    parts = info.name.split("/")
    place = target.joinpath(*parts)
    is_below = parts[0] in _KEPT and not any(part in ("", ".", "..") for part in parts)
    if not is_below or place.parent.resolve() != target.resolve().joinpath(*parts[:-1]):
        raise ValueError(f"{info.name[:200]!r} leads outside")
    if info.isdir():
        place.mkdir(mode=0o700)
    elif info.issym():
        place.symlink_to(info.linkname)
    elif info.isreg() and (content := tar.extractfile(info)) is not None:
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
            shutil.copyfileobj(_Read(content, digest), copy, 1 << 20)
        place.chmod(info.mode & 0o700 | 0o600)
        os.utime(place, (info.mtime, info.mtime))
    else:
        raise ValueError(f"{info.name[:200]!r} is no file")
