"""The journal's file: its tables, how those of older governors are taken over, and whether it is whole.

Rules:
1. A journal is checked before it is used (`examine`), a damaged one is refused: what can be read of it may be wrong.
2. A migration is one transaction; a journal of a newer governor is left alone.
3. Pages of what was pruned go back to the disk (``auto_vacuum=INCREMENTAL``). A journal of before is rewritten for
   that once, at a start that finds the room.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.errors import JournalDamaged, JournalError
from governor.files import put_in_place, temporary
from governor.journal.disk_reserve import no_room

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA_VERSION: Final = 4
_RUNS: Final = """
CREATE TABLE runs (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL UNIQUE,
    key TEXT UNIQUE,
    name TEXT NOT NULL,
    spec BLOB NOT NULL,
    folder TEXT NOT NULL,
    submitted_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL,
    outcome TEXT,
    reason TEXT NOT NULL DEFAULT '',
    result BLOB,
    parent TEXT,
    result_file TEXT,
    digest BLOB,
    pruned_at REAL,
    removed INTEGER NOT NULL DEFAULT 0
);
"""
_RECORDS: Final = """
CREATE TABLE records (
    position INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES runs (position),
    kind TEXT NOT NULL,
    phase INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX records_of_phase ON records (run, kind, phase);
CREATE TABLE events (
    run INTEGER NOT NULL REFERENCES runs (position),
    last INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    data BLOB,
    records INTEGER REFERENCES records (position),
    PRIMARY KEY (run, last)
) WITHOUT ROWID;
CREATE TABLE ended_episodes (
    run INTEGER NOT NULL, phase INTEGER NOT NULL, episode INTEGER NOT NULL,
    PRIMARY KEY (run, phase, episode)
) WITHOUT ROWID;
CREATE TABLE ended_tasks (
    run INTEGER NOT NULL, phase INTEGER NOT NULL, task TEXT NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (run, phase, task, number)
) WITHOUT ROWID;
"""
"""What came together is one row, of `records` and of `events`: `data` is an array in msgpack. A row of `events` holds
`number` events of one kind, numbered up to `last`; those of ended episodes and tasks are told by their records.
"""
SCHEMA: Final = _RUNS + _RECORDS
MIGRATIONS: Final = {
    1: "ALTER TABLE runs ADD COLUMN parent TEXT;",
    2: f"""
ALTER TABLE events RENAME TO old_events;
{_RECORDS}
INSERT INTO events (run, last, number, at, kind, data)
    SELECT position, seq, 1, at, kind, packed(data) FROM old_events JOIN runs USING (uid);
INSERT INTO records (run, kind, phase, data)
    SELECT runs.position, 'episode', phase, packed(record) FROM episodes JOIN runs USING (uid)
    ORDER BY episodes.position;
INSERT INTO records (run, kind, phase, data)
    SELECT runs.position, 'task', phase, packed(record) FROM tasks JOIN runs USING (uid) ORDER BY tasks.position;
INSERT INTO ended_episodes SELECT runs.position, phase, episode FROM episodes JOIN runs USING (uid);
INSERT INTO ended_tasks SELECT runs.position, phase, task, run FROM tasks JOIN runs USING (uid);
DROP TABLE old_events;
DROP TABLE episodes;
DROP TABLE tasks;
""",  # noqa: S608  # our own schema
    3: """
ALTER TABLE runs ADD COLUMN result_file TEXT;
ALTER TABLE runs ADD COLUMN digest BLOB;
ALTER TABLE runs ADD COLUMN pruned_at REAL;
ALTER TABLE runs ADD COLUMN removed INTEGER NOT NULL DEFAULT 0;
""",
}
"""From each schema to the next one; ``packed(data)`` is `array_of_one`."""
FAULTS: Final = 5
"""That a check looks for: the first one is told."""
WAL_BYTES: Final = 16 << 20
"""To which the write-ahead log is cut when it was longer."""
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_INCREMENTAL: Final = 2

log = logs.get_logger()


def connect(path: Path) -> sqlite3.Connection:
    """Raises sqlite3.Error; NoRoom, JournalError where there is none and none can be made."""
    if not path.exists():
        try:
            _create(path)
        except OSError as error:
            raise no_room(path, error) or JournalError(
                f"the journal {path} cannot be made: {error}"
            ) from error
    with suppress(OSError):  # SQLite finds it too, and says so
        _make_private(path)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA busy_timeout=5000")
    connection.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")
    return connection


def _create(path: Path) -> None:
    """An empty journal, there whole or not at all: two syncs, where SQLite takes eleven for it."""
    part = temporary(path)
    for each in _files(part):
        each.unlink(missing_ok=True)
    part.touch(mode=0o600)
    with closing(sqlite3.connect(part, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        prepare(connection, path)
    put_in_place(part, path)


def _files(path: Path) -> tuple[Path, ...]:
    return (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm"))


def _make_private(path: Path) -> None:
    """What SQLite makes beside the file gets its mode from it; what was made before keeps its own."""
    for each in _files(path):
        if each.exists() and each.stat().st_mode & 0o077:
            each.chmod(0o600)


def _text(raw: bytes) -> str | bytes:
    """What is no text is one damaged value, not a file that can't be read."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Makes the tables, or brings those of an older governor up to date. Raises JournalError, sqlite3.Error."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise JournalError(
            f"the journal {path} is of schema {version}, this governor knows up to {SCHEMA_VERSION}: "
            "use the newer governor that wrote it"
        )
    if version < SCHEMA_VERSION:
        connection.create_function("packed", 1, array_of_one, deterministic=True)
        steps = [MIGRATIONS[step] for step in range(version, SCHEMA_VERSION)] if version else [SCHEMA]
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE; {''.join(steps)} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;"
            )
        except sqlite3.Error:
            roll_back(connection)
            raise


def examine(path: Path) -> None:
    """Sees that the journal is whole, and brings it up to date. Blocks, for seconds where it has gigabytes.

    Raises JournalDamaged, and JournalError where it can't be read or written.
    """
    if not path.exists():
        connect(path).close()
        return
    began = time.monotonic()
    try:
        with closing(connect(path)) as connection:
            _check(connection, path)
            prepare(connection, path)
            _compact(connection, path)
    except sqlite3.Error as error:
        raise failure(path, "opened", error) from error
    log.info("journal.checked", bytes=path.stat().st_size, seconds=round(time.monotonic() - began, 3))


def _check(connection: sqlite3.Connection, path: Path) -> None:
    faults = [fault for (fault,) in connection.execute(f"PRAGMA quick_check({FAULTS})")]
    if faults != ["ok"]:
        raise damaged(path, " ".join(faults[0].split()))


def _compact(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
    size = path.stat().st_size
    if mode == _INCREMENTAL or shutil.disk_usage(path.parent).free < 3 * size:
        return
    try:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("VACUUM")
    except sqlite3.OperationalError as error:  # it stays as it is, and whole: a later start tries again
        log.warning("journal.not_compacted", bytes=size, reason=str(error))


def roll_back(connection: sqlite3.Connection) -> None:
    """What can't be rolled back stays open: the next transaction says so."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        log.warning("journal.not_rolled_back", reason=str(error))


def failure(path: Path, deed: str, error: sqlite3.Error) -> JournalError:
    """What an error of SQLite means to whoever asked."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
        return damaged(path, str(error))
    return JournalError(f"the journal {path} cannot be {deed}: {error}")


def damaged(path: Path, fault: str) -> JournalDamaged:
    return JournalDamaged(
        f"the journal {path} is damaged: {fault}; put a copy of it back, or move {path.name}, {path.name}-wal and "
        f"{path.name}-shm away to begin a new one (runs/<id>/result.json of ended runs stay as they are)"
    )


def array_of_one(document: bytes) -> bytes:
    """An array in msgpack, of a document that is packed already."""
    return b"\x91" + document
