"""A state folder as `kill -9` would have left it at one moment, while its daemon works: that is what a start can go on from.

Rules:
1. Folders of runs that ended a while ago do not change, nor do the copies of code that runs have: their files are linked into a folder of
   the snapshot, so that a prune takes none.
2. All others are opened while the journal takes no record, so that files and journal are of the same moment: a file that is replaced
   later is another one, one that grows counts up to the size that it had. That takes milliseconds; the daemon waits, for 5 s at most.
   They can't be linked: for the daemon a file of a run at work that has two names may be another file of the user. Small ones are
   read at once, so that few are open.
3. The folder is removed in the end; what a backup that was killed has left of it, the next one removes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from errno import EMFILE, ENFILE, EXDEV
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor.errors import NotPermitted, TryAgain, UsageError
from governor.journal import schema
from governor.journal.disk_reserve import no_room
from governor.locations import CODE, JOURNAL, KEYS, RUNS

if TYPE_CHECKING:
    from collections.abc import Iterator

BUSY_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 0.0002
_SMALL: Final = 16_384
_SMALL_BYTES: Final = 64 << 20
"""Of all small files that are read at once."""
_PREFIX: Final = ".backup-"
_SETTLED_SECONDS: Final = 60.0
_ALL: Final = f"SELECT uid, {schema.ENDED} AND ended_at < ? FROM runs WHERE {schema.KEPT}"  # noqa: S608  # our own schema
_COUNTS: Final = f"SELECT count(*), coalesce(sum({schema.UNENDED}), 0) FROM runs WHERE {schema.KEPT}"  # noqa: S608  # as above


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file, a folder, or a symbolic link with what it names. A file is `path`, is open as `file`, or was read: `content`; it has the size
    of `status`.
    """

    name: str
    status: os.stat_result
    link: str = ""
    path: Path | None = None
    file: int = -1
    content: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`entries` are in the order in which they can be made again. `runs` are on record, `unended` of them go on."""

    entries: list[Entry]
    runs: int
    unended: int


@contextmanager
def snapshot(state_dir: Path) -> Iterator[Snapshot]:
    """Takes one. Blocks. Raises UsageError, TryAgain, NotPermitted, NoRoom, JournalError."""
    if not (state_dir / JOURNAL).exists():
        raise UsageError(f"{state_dir} has no journal: --state-dir names the folder of the daemon")
    with ExitStack() as stack:
        try:
            taken = _taken(state_dir, stack.enter_context(_folder(state_dir)), stack)
        except sqlite3.Error as error:
            raise schema.failure(state_dir / JOURNAL, "copied", error) from error
        except OSError as error:
            raise _refusal(state_dir, error) from error
        yield taken


def _refusal(state_dir: Path, error: OSError) -> Exception:
    if error.errno == EXDEV:
        return UsageError(
            f"files below {state_dir} are on another file system: stop the daemon, and copy the folder"
        )
    if isinstance(error, PermissionError):
        return NotPermitted(f"{error.filename or state_dir}: {error.strerror}; be the daemon's user, or root")
    if error.errno in (EMFILE, ENFILE):
        return TryAgain(
            "there are more files of runs at work than may be open: raise the limit (`ulimit -n`)"
        )
    return no_room(state_dir, error) or error


@contextmanager
def _folder(state_dir: Path) -> Iterator[Path]:
    """One that is locked, so that nobody takes it for a leftover."""
    for left in state_dir.glob(f"{_PREFIX}*"):
        with suppress(OSError), _locked(left):
            shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=state_dir))
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _taken(state_dir: Path, folder: Path, stack: ExitStack) -> Snapshot:
    path = state_dir / JOURNAL
    (folder / RUNS).mkdir()
    opened = _Opened(stack)
    with closing(schema.connect_read_only(path)) as journal:
        for uid, is_settled in journal.execute(_ALL, (time.time() - _SETTLED_SECONDS,)).fetchall():
            part = RUNS if is_settled else f"{RUNS}/{uid}"
            with suppress(FileNotFoundError):  # it has no files, no copy of its code, or was pruned meanwhile
                opened.besides.add(_linked(state_dir, folder, f"{part}/{uid if is_settled else CODE}"))
        with _quiet(path):
            journal.execute("BEGIN")
            found = journal.execute(_COUNTS).fetchone()
            for name in (KEYS, RUNS):
                if (state_dir / name).exists():
                    opened.take(state_dir / name, name)
        copy = folder / JOURNAL
        copy.touch(mode=0o600)
        with closing(sqlite3.connect(copy)) as into:
            journal.backup(into)
            into.execute("PRAGMA journal_mode=DELETE")  # one file
    there = {entry.name for entry in opened.entries}
    entries = [Entry(name=JOURNAL, status=copy.stat(), path=copy), *opened.entries]
    for name in sorted(opened.besides & there):  # those that were pruned before the journal was read are not
        entries += _listed(folder / name, name)
    return Snapshot(entries=entries, runs=found[0], unended=found[1])


def _linked(state_dir: Path, folder: Path, name: str) -> str:
    """Returns the name. Raises FileNotFoundError."""
    place = folder / name
    place.parent.mkdir(exist_ok=True)
    _link(state_dir / name, place)
    return name


def _link(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700)
    with os.scandir(source) as entries:
        for entry in entries:
            place = target / entry.name
            if entry.is_dir(follow_symlinks=False):
                _link(Path(entry.path), place)
            elif entry.is_symlink() or entry.is_file():
                os.link(entry.path, place, follow_symlinks=False)


def _listed(folder: Path, name: str) -> Iterator[Entry]:
    """What is in a folder, without itself."""
    for path in sorted(folder.rglob("*")):
        link = str(path.readlink()) if path.is_symlink() else ""
        own = f"{name}/{path.relative_to(folder)}"
        yield Entry(name=own, status=path.lstat(), link=link, path=path)


class _Opened:
    """What is in folders, all of one moment. Of those of the names `besides` the folders themselves alone."""

    def __init__(self, stack: ExitStack) -> None:
        self.entries: list[Entry] = []
        self.besides: set[str] = set()
        self._stack = stack
        self._room = _SMALL_BYTES

    def take(self, folder: Path, name: str) -> None:
        self.entries.append(Entry(name=name, status=folder.stat()))
        if name in self.besides:
            return
        with os.scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            own, path = f"{name}/{entry.name}", Path(entry.path)
            with suppress(FileNotFoundError):  # it was there a moment ago
                if entry.is_symlink():
                    self.entries.append(Entry(name=own, status=path.lstat(), link=str(path.readlink())))
                elif entry.is_dir():
                    self.take(path, own)
                elif entry.is_file():
                    self.entries.append(self._file(path, own))

    def _file(self, path: Path, name: str) -> Entry:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(file)
        if status.st_size <= min(_SMALL, self._room):
            with os.fdopen(file, "rb") as small:
                content = small.read(status.st_size)
            self._room -= len(content)
            return Entry(name=name, status=status, content=content)
        self._stack.callback(os.close, file)
        return Entry(name=name, status=status, file=file)


@contextmanager
def _quiet(path: Path) -> Iterator[None]:
    """The journal takes no record meanwhile. Raises TryAgain."""
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)
    ) as connection:
        connection.execute("PRAGMA busy_timeout=0")
        until = time.monotonic() + BUSY_SECONDS
        while not _begun(connection):
            if time.monotonic() > until:
                raise TryAgain(f"{path} was never free for a moment: try again")
            time.sleep(_RETRY_SECONDS)
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


def _begun(connection: sqlite3.Connection) -> bool:
    """Not so while another writes. SQLite's own waiting, in steps of up to 100 ms, misses the gaps of a daemon that is busy."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            return False
        raise
    return True
