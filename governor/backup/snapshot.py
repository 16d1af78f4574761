"""A state folder as `kill -9` would have left it at one moment, while its daemon works: that is what a start can go on from.

Rules:
1. Folders of runs that ended a while ago do not change: their files are linked into a folder of the snapshot, so that a prune takes none.
2. All others are opened while the journal takes no record, so that files and journal are of the same moment: a file that is replaced
   later is another one, one that grows counts up to the size that it had. That takes milliseconds; the daemon waits, for 5 s at most.
   They can't be linked: for the daemon a file of a run at work that has two names may be another file of the user.
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
from governor.locations import JOURNAL, KEYS, RUNS

if TYPE_CHECKING:
    from collections.abc import Iterator

BUSY_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 0.0002
_PREFIX: Final = ".backup-"
_SETTLED_SECONDS: Final = 60.0
_SETTLED: Final = f"SELECT uid FROM runs WHERE {schema.ENDED} AND {schema.KEPT} AND ended_at < ?"  # noqa: S608  # our own schema
_COUNTS: Final = f"SELECT count(*), coalesce(sum({schema.UNENDED}), 0) FROM runs WHERE {schema.KEPT}"  # noqa: S608  # as above


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file, a folder, or a symbolic link with what it names. A file is `path`, or open as `file`, and has the size of `status`."""

    name: str
    status: os.stat_result
    link: str = ""
    path: Path | None = None
    file: int = -1


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
            yield _taken(state_dir, stack.enter_context(_folder(state_dir)), stack)
        except sqlite3.Error as error:
            raise schema.failure(state_dir / JOURNAL, "copied", error) from error
        except OSError as error:
            raise _refusal(state_dir, error) from error


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
    path, runs = state_dir / JOURNAL, state_dir / RUNS
    linked = folder / RUNS
    linked.mkdir()
    rest: list[Entry] = []
    with closing(schema.connect_read_only(path)) as journal:
        settled = _settled(journal)
        for uid in settled:
            with suppress(FileNotFoundError):  # it has no files, or was pruned meanwhile
                _link(runs / uid, linked / uid)
        with _quiet(path):
            journal.execute("BEGIN")
            found = journal.execute(_COUNTS).fetchone()
            for name in (KEYS, RUNS):
                if (state_dir / name).exists():
                    rest += _opened(state_dir / name, name, stack, besides=settled)
        copy = folder / JOURNAL
        copy.touch(mode=0o600)
        with closing(sqlite3.connect(copy)) as into:
            journal.backup(into)
            into.execute("PRAGMA journal_mode=DELETE")  # one file
    there = {entry.name for entry in rest}
    entries = [Entry(name=JOURNAL, status=copy.stat(), path=copy), *rest]
    for run in sorted(linked.iterdir()):
        if f"{RUNS}/{run.name}" in there:  # it was not pruned before the journal was read
            entries += _listed(run, f"{RUNS}/{run.name}")
    return Snapshot(entries=entries, runs=found[0], unended=found[1])


def _settled(journal: sqlite3.Connection) -> set[str]:
    """Runs whose files nobody changes any more."""
    return {uid for (uid,) in journal.execute(_SETTLED, (time.time() - _SETTLED_SECONDS,))}


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


def _opened(folder: Path, name: str, stack: ExitStack, *, besides: set[str]) -> Iterator[Entry]:
    """A folder and what is in it, its files open; of folders of the names `besides` themselves alone."""
    yield Entry(name=name, status=folder.stat())
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        own, path = f"{name}/{entry.name}", Path(entry.path)
        with suppress(FileNotFoundError):  # it was there a moment ago
            if entry.is_symlink():
                yield Entry(name=own, status=path.lstat(), link=str(path.readlink()))
            elif entry.is_dir():
                if entry.name in besides:
                    yield Entry(name=own, status=path.stat())
                else:
                    yield from _opened(path, own, stack, besides=set())
            elif entry.is_file():
                file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                stack.callback(os.close, file)
                yield Entry(name=own, status=os.fstat(file), file=file)


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
