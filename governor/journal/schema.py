"""The journal's file: its tables, migrations from older versions, and the check of its integrity.

Rules:
1. A journal is checked before it is used (`examine`); a damaged one is refused, since its data may be wrong.
2. A migration is one transaction; a journal of a newer version is not changed.
3. Pages of pruned runs are returned to the disk (``auto_vacuum=INCREMENTAL``). An older journal is rewritten for that
   once, at a start with enough room.
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
from governor.journal import failures, outbox
from governor.journal.disk_reserve import no_room
from governor.journal.excerpts import FUNCTIONS

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA_VERSION: Final = 10
ENDED: Final = "typeof(ended_at) = 'real'"
UNENDED: Final = "typeof(ended_at) <> 'real'"
PRUNED: Final = "typeof(pruned_at) = 'real'"
"""Another type there is damage, and no reason to remove a run."""
KEPT: Final = "typeof(pruned_at) <> 'real'"
LARGEST: Final = 2**63
"""Integers of SQLite are below this."""
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
    removed INTEGER NOT NULL DEFAULT 0,
    phases INTEGER,
    metrics BLOB,
    seconds REAL
);
"""
"""`phases`, `metrics`, `seconds` are from `spec` and `result` (`excerpts`), so that a line about a run needs neither."""
_INDICES: Final = f"""
CREATE INDEX unended_runs ON runs (position, parent) WHERE {UNENDED};
CREATE INDEX ended_runs ON runs (ended_at, position, uid) WHERE {ENDED} AND {KEPT};
CREATE INDEX kept_runs ON runs (position) WHERE {KEPT};
CREATE INDEX marked_runs ON runs (position) WHERE {PRUNED} AND removed = 0;
"""
"""A query uses one of these if it has the same conditions, word for word."""
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
"""Items that were recorded together are one row, of `records` and of `events`: `data` is an array in msgpack. A row of
`events` holds `number` events of one kind, numbered up to `last`; the data of ended episodes and tasks are in `records`.
"""
_FIGURES: Final = """
CREATE TABLE figures (
    run INTEGER NOT NULL, phase INTEGER NOT NULL, records INTEGER NOT NULL, data BLOB NOT NULL, inherited BLOB,
    PRIMARY KEY (run, phase)
) WITHOUT ROWID;
CREATE INDEX events_of_kind ON events (run, kind) WHERE records IS NULL;
"""
"""`figures` has the running figures of each phase, `PhaseFigures` in msgpack, of its episodes in the rows of `records` up to
this one: what follows from the records alone, kept so that nobody reads all of them again. `inherited` are those of the
episodes that the run has from the one that it resumes, and no records of.
"""
_FAILURES: Final = f"""
{failures.TABLES}
ALTER TABLE events ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;
{failures.INDEX}
"""
_OF_DAEMON: Final = """
CREATE TABLE daemon_events (
    position INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    data BLOB NOT NULL
);
"""
"""What was asked of the daemon itself: `data` is a map in msgpack."""
_GROUPS: Final = f"""
ALTER TABLE runs ADD COLUMN group_uid TEXT;
ALTER TABLE runs ADD COLUMN cell INTEGER;
ALTER TABLE runs ADD COLUMN params BLOB;
ALTER TABLE runs ADD COLUMN labels BLOB;
CREATE TABLE groups (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL UNIQUE,
    key TEXT UNIQUE,
    name TEXT NOT NULL,
    submitted_at REAL NOT NULL,
    runs INTEGER NOT NULL,
    digest BLOB,
    paths BLOB NOT NULL,
    max_parallel INTEGER,
    fail_fast INTEGER NOT NULL DEFAULT 0,
    fails_after INTEGER NOT NULL DEFAULT 0,
    aborted_to INTEGER NOT NULL DEFAULT 0,
    abort_reason TEXT NOT NULL DEFAULT '',
    abort_by BLOB
);
CREATE TABLE run_labels (
    run INTEGER NOT NULL REFERENCES runs (position),
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (run, key)
) WITHOUT ROWID;
CREATE INDEX runs_of_label ON run_labels (key, value, run);
CREATE INDEX runs_of_outcome ON runs (outcome, position) WHERE {KEPT};
CREATE INDEX runs_of_group ON runs (group_uid, position, outcome) WHERE group_uid IS NOT NULL;
"""
"""`paths`: those of the matrix, in its order. `fails_after`: with `fail_fast` failures of runs behind this row count, the runs
that were resumed last begin there. `aborted_to`: the last row of those that an abort of the group ends, which
`abort_by` has asked for.
"""
SCHEMA: Final = _RUNS + _INDICES + _RECORDS + _FIGURES + _FAILURES + _OF_DAEMON + _GROUPS + outbox.TABLES
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
    4: _FIGURES,
    5: f"""
ALTER TABLE runs ADD COLUMN phases INTEGER;
ALTER TABLE runs ADD COLUMN metrics BLOB;
ALTER TABLE runs ADD COLUMN seconds REAL;
UPDATE runs SET phases = phases_of(spec), metrics = metrics_of(result), seconds = seconds_of(result) WHERE {KEPT};
{_INDICES}
""",  # noqa: S608  # our own schema
    6: f"""
{_FAILURES}
UPDATE events SET failures = failures_packed(kind, coalesce(data, (SELECT records.data FROM records WHERE position = records)))
    WHERE kind IN {failures.KINDS};
""",  # noqa: S608  # our own schema
    7: _OF_DAEMON,
    8: _GROUPS,
    9: outbox.TABLES,
}
"""From each schema to the next one; ``packed(data)`` is `array_of_one`, the other functions are `excerpts.FUNCTIONS` and
`failures.failures_packed`.
"""
FAULTS: Final = 5
"""Faults that a check looks for; the first one is reported."""
WAL_BYTES: Final = 16 << 20
"""The size to which a longer write-ahead log is truncated."""
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
    with suppress(OSError):  # SQLite reports it, too
        _make_private(path)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA busy_timeout=5000")
    connection.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")
    return connection


def connect_read_only(path: Path) -> sqlite3.Connection:
    """For a process that is not the daemon. Raises sqlite3.Error."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    connection.text_factory = _text
    connection.execute("PRAGMA busy_timeout=5000")
    return connection


def _create(path: Path) -> None:
    """Creates an empty journal atomically: with two syncs, where SQLite needs eleven."""
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
    """Restricts the modes of existing files: SQLite copies the mode of the journal to new files beside it only."""
    for each in _files(path):
        if each.exists() and each.stat().st_mode & 0o077:
            each.chmod(0o600)


def _text(raw: bytes) -> str | bytes:
    """Bytes that are not UTF-8 are one damaged value, not an unreadable file."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Creates the tables, or migrates those of an older version. Raises JournalError, sqlite3.Error."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise JournalError(
            f"the journal {path} is of schema {version}, this governor knows up to {SCHEMA_VERSION}: "
            "use the newer governor that wrote it"
        )
    if version < SCHEMA_VERSION:
        for name, function in (("packed", array_of_one), *FUNCTIONS.items()):
            connection.create_function(name, 1, function, deterministic=True)
        connection.create_function("failures_packed", 2, failures.failures_packed, deterministic=True)
        steps = [MIGRATIONS[step] for step in range(version, SCHEMA_VERSION)] if version else [SCHEMA]
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE; {''.join(steps)} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;"
            )
        except sqlite3.Error:
            roll_back(connection)
            raise


def examine(path: Path) -> None:
    """Checks the integrity of the journal, and migrates it. Blocks, for seconds where it has gigabytes.

    Raises JournalDamaged, and JournalError where it can't be read or written.
    """
    if not path.exists():
        connect(path).close()
        return
    began = time.monotonic()
    check(path)
    log.info("journal.checked", bytes=path.stat().st_size, seconds=round(time.monotonic() - began, 3))


def check(path: Path) -> None:
    """As `examine`, for a process without a log."""
    try:
        with closing(connect(path)) as connection:
            _check(connection, path)
            prepare(connection, path)
            _compact(connection, path)
    except sqlite3.Error as error:
        raise failure(path, "opened", error) from error


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
    except sqlite3.OperationalError as error:  # the file stays as it was: a later start tries again
        log.warning("journal.not_compacted", bytes=size, reason=str(error))


def roll_back(connection: sqlite3.Connection) -> None:
    """A transaction that can't be rolled back stays open: the next one raises."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        log.warning("journal.not_rolled_back", reason=str(error))


def failure(path: Path, action: str, error: sqlite3.Error) -> JournalError:
    """The JournalError for an error of SQLite; `action` is a participle, as "read"."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
        return damaged(path, str(error))
    return JournalError(f"the journal {path} cannot be {action}: {error}")


def damaged(path: Path, fault: str) -> JournalDamaged:
    return JournalDamaged(
        f"the journal {path} is damaged: {fault}; put a copy of it back, or move {path.name}, {path.name}-wal and "
        f"{path.name}-shm away to begin a new one (runs/<id>/result.json of ended runs stay as they are)"
    )


def array_of_one(document: bytes) -> bytes:
    """An array in msgpack, of a document that is packed already."""
    return b"\x91" + document
