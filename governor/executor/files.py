"""The files of a run on this machine: those in its folder, or a copy of them that is brought up to date.

Rules:
1. Of a daemon on another machine there is a copy, in ``$XDG_CACHE_HOME/run-governor``. Only what has changed is fetched: a file that
   has grown from where it ended, if what is before that is the same.
2. One call at a time works at the copy of a run: another one, also of another process, waits.
3. A file whose copy was not finished, for whatever reason, has another time than the original: the next call goes on with it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor.errors import BadRequest, TryAgain, UsageError
from governor.executor.connection import RETRY_SECONDS, Connection
from governor.locations import cache_dir
from governor.messages.files import (
    PIECE_BYTES,
    FileList,
    FilePiece,
    ListFiles,
    PackageStored,
    ReadFile,
    StorePackage,
)
from governor.network import packages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from governor.messages.files import FileEntry

DIGITS: Final = 12
"""Of a digest of a daemon's key."""
AT_ONCE: Final = 4
"""Pieces that are asked for at once."""
GROWING: Final = (".jsonl", ".arrow")
"""Files at whose end something is added; others are written whole, and put in the place of what was there."""
OVERLAP: Final = 4_096
"""Bytes before the end of a copy that are compared."""
TRIES: Final = 5
"""Of a file in whose place another one is put meanwhile."""
PIECE_SECONDS: Final = 60.0


class _Replaced(Exception):
    """Another file has taken the place of the one that was being copied."""


class Packages(Connection):
    """What is submitted to a daemon on another machine goes there with the files of its folder."""

    async def _with_code(self, run: dict[str, Any], folder: str) -> tuple[dict[str, Any], str]:
        """The run and its folder, as the daemon is to be told of them. Raises UsageError, OSError, and as a request."""
        if self.keys is None:
            return run, folder
        package, digest, size = await asyncio.to_thread(packages.pack, Path(folder))
        with package:
            have = await self._store(StorePackage(digest=digest, size=size))
            while have < size:
                package.seek(have)
                part = StorePackage(digest=digest, size=size, offset=have, data=package.read(PIECE_BYTES))
                before, have = have, await self._store(part)
                if have <= before:
                    raise TryAgain(
                        "another submit sends the same files at the same time: submit the run again"
                    )
        return {**run, "code": "snapshot"}, packages.PREFIX + digest

    async def _store(self, part: StorePackage) -> int:
        answer = await self._ask(part, PackageStored, seconds=max(self.timeout, PIECE_SECONDS))
        return answer.bytes


class RunFiles(Connection):
    """The verb of an `Executor` for files."""

    async def files(self, uid: str, *, steps: bool = True, most: int | None = None) -> Path:
        """The folder with the files of a run, on this machine; of a daemon on another machine a copy, which is brought up to date.

        Args:
            uid: the id of a run, or a unique beginning of it.
            steps: whether a copy has the recorded steps, which may be large.
            most: larger files, in bytes, are left out of a copy.

        Raises NoSuchRun, OSError where a copy cannot be written, TryAgain for files that change faster than they can be copied.
        """
        found = await self._ask(ListFiles(uid=uid), FileList, source=uid)
        if self.keys is None:
            return Path(found.folder)
        daemon = hashlib.sha256(self.keys.server.encode()).hexdigest()[:DIGITS]
        folder = cache_dir() / daemon / found.uid
        async with _copy_lock(folder):
            entries = await self._listed(found.uid)  # now: another call may have brought what is newer
            await asyncio.to_thread(_begin_copy, folder, {entry.path for entry in entries})
            for entry in entries:
                if (steps or not _has_steps(entry.path)) and (most is None or entry.size <= most):
                    await self._bring(found.uid, folder, entry)
        return folder

    async def _listed(self, uid: str) -> list[FileEntry]:
        """All files. Raises NoSuchRun."""
        page = await self._ask(ListFiles(uid=uid), FileList, source=uid)
        found = [*page.files]
        while page.more:
            page = await self._ask(ListFiles(uid=uid, after=found[-1].path), FileList, source=uid)
            found += page.files
        return found

    async def _bring(self, uid: str, folder: Path, entry: FileEntry) -> None:
        """Brings the copy of one file up to date; one that has gone meanwhile is left out. Raises TryAgain, OSError."""
        path = _place(folder, entry.path)
        for _ in range(TRIES):
            begin = await asyncio.to_thread(_ended_at, path, entry)
            if begin is None:
                return
            with suppress(_Replaced):
                await self._fetch(uid, path, entry, begin=begin)
                return
            listed = (await self._ask(ListFiles(uid=uid, after=entry.path[:-1]), FileList, source=uid)).files
            now = next((each for each in listed if each.path == entry.path), None)
            if now is None:
                return
            entry = now
        raise TryAgain(f"{entry.path} of run {uid} changes faster than it can be copied: ask again")

    async def _fetch(self, uid: str, path: Path, entry: FileEntry, *, begin: int) -> None:
        """Raises _Replaced, OSError."""
        offsets = range(begin, max(entry.size, begin + 1), PIECE_BYTES)
        with path.open("r+b" if begin else "wb") as file:
            before = os.pread(file.fileno(), OVERLAP, begin) if begin else b""
            for first in range(0, len(offsets), AT_ONCE):
                asked = offsets[first : first + AT_ONCE]
                pieces = await asyncio.gather(*(self._piece(uid, entry, offset) for offset in asked))
                for offset, data in zip(asked, pieces, strict=True):
                    if offset == begin and not data.startswith(before):
                        file.truncate(0)  # it begins anew
                        raise _Replaced
                    file.seek(offset)
                    file.write(data)
            file.truncate(entry.size)
        os.utime(path, ns=(entry.changed, entry.changed))

    async def _piece(self, uid: str, entry: FileEntry, offset: int) -> bytes:
        """Raises _Replaced."""
        asked = ReadFile(uid=uid, path=entry.path, offset=offset)
        try:
            found = await self._ask(asked, FilePiece, source=uid, seconds=max(self.timeout, PIECE_SECONDS))
        except UsageError as error:
            raise _Replaced from error
        is_other = found.changed != entry.changed and not entry.path.endswith(GROWING)
        if (
            is_other
            or found.number != entry.number
            or offset + len(found.data) < min(entry.size, offset + PIECE_BYTES)
        ):
            raise _Replaced
        return found.data


@asynccontextmanager
async def _copy_lock(folder: Path) -> AsyncGenerator[None, None]:
    """One call at a time brings the copy in a folder up to date, of all processes; on a file system without locks each one does. Raises OSError."""
    await asyncio.to_thread(folder.parent.mkdir, mode=0o700, parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("wb") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(RETRY_SECONDS)
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                    raise
                break
            else:
                break
        yield


def _place(folder: Path, path: str) -> Path:
    """Below `folder`, whatever a daemon says. Raises BadRequest."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise BadRequest(f"the daemon names a file {path!r}, which is no path below the folder of a run")
    place = folder.joinpath(*parts)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _has_steps(path: str) -> bool:
    return path.startswith("episodes/") and not path.endswith(".jsonl")


def _begin_copy(folder: Path, paths: set[str]) -> None:
    """Makes the folder, and removes what the original does not have. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in [*folder.rglob("*")]:
        if path.is_file() and str(path.relative_to(folder)) not in paths:
            path.unlink()


def _ended_at(path: Path, entry: FileEntry) -> int | None:
    """Where a copy is to go on, 0 for one that is to be made; None for one that is complete. Blocks."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    if (found.st_size, found.st_mtime_ns) == (entry.size, entry.changed):
        return None
    return max(found.st_size - OVERLAP, 0) if found.st_size < entry.size else 0
