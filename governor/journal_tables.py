"""The journal's tables, and what may be written into them: one method of `Transaction` for each kind of change.

Rules: a run is inserted once for a client's key; an episode or a run of a task is recorded once, the first record
stays; an outcome is set once, the first one stays.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, get_args

import msgspec

from governor.messages import EpisodeRecord, RunEvent, RunOutcome, RunResult, TaskRecord

if TYPE_CHECKING:
    import sqlite3

SCHEMA_VERSION: Final = 1
SCHEMA: Final = """
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
    result BLOB
);
CREATE TABLE events (
    uid TEXT NOT NULL,
    seq INTEGER NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (uid, seq)
) WITHOUT ROWID;
CREATE TABLE episodes (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL,
    phase INTEGER NOT NULL,
    episode INTEGER NOT NULL,
    record BLOB NOT NULL,
    UNIQUE (uid, phase, episode)
);
CREATE TABLE tasks (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL,
    phase INTEGER NOT NULL,
    task TEXT NOT NULL,
    run INTEGER NOT NULL,
    record BLOB NOT NULL,
    UNIQUE (uid, phase, task, run)
);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as it stands in the journal. Times are wall-clock seconds; `spec` is the run file as submitted."""

    SELECT: ClassVar[str] = (
        "SELECT uid, key, name, spec, folder, submitted_at, started_at, ended_at, outcome, reason FROM runs"
    )
    uid: str
    key: str | None
    name: str
    spec: dict[str, Any]
    folder: str
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    outcome: RunOutcome | None
    reason: str


def read_row(row: tuple[Any, ...]) -> RunRow:
    uid, key, name, spec, folder, submitted_at, started_at, ended_at, outcome, reason = row
    return RunRow(
        uid=uid,
        key=key,
        name=name,
        spec=msgspec.msgpack.decode(spec),
        folder=folder,
        submitted_at=submitted_at,
        started_at=started_at,
        ended_at=ended_at,
        outcome=outcome,
        reason=reason,
    )


class Transaction:
    """One group of changes in the writer's thread. `touched` are the runs that have new events."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.touched: set[str] = set()

    def submit(self, *, uid: str, key: str | None, name: str, spec: dict[str, Any], folder: str) -> str:
        """Records a run and gives its uid; that of the earlier one where the key was used before."""
        if key is not None:
            known = self._connection.execute("SELECT uid FROM runs WHERE key = ?", (key,)).fetchone()
            if known:
                return str(known[0])
        self._connection.execute(
            "INSERT INTO runs (uid, key, name, spec, folder, submitted_at) VALUES (?, ?, ?, ?, ?, ?)",
            (uid, key, name, msgspec.msgpack.encode(spec), folder, time.time()),
        )
        self.event(uid, "run.accepted", {"name": name})
        return uid

    def event(self, uid: str, kind: str, data: dict[str, Any]) -> RunEvent:
        """Records the next event of a run."""
        (last,) = self._connection.execute(
            "SELECT coalesce(max(seq), 0) FROM events WHERE uid = ?", (uid,)
        ).fetchone()
        event = RunEvent(uid=uid, seq=last + 1, at=time.time(), kind=kind, data=data)
        self._connection.execute(
            "INSERT INTO events (uid, seq, at, kind, data) VALUES (?, ?, ?, ?, ?)",
            (uid, event.seq, event.at, kind, msgspec.msgpack.encode(data)),
        )
        self.touched.add(uid)
        return event

    def started(self, uid: str) -> None:
        """The first start counts; a run that goes on in another invocation keeps it."""
        self._connection.execute(
            "UPDATE runs SET started_at = coalesce(started_at, ?) WHERE uid = ?", (time.time(), uid)
        )

    def episode(self, uid: str, phase: int, record: EpisodeRecord) -> bool:
        """Records an ended episode; False when it was on record already."""
        return self._insert_once(
            "INSERT OR IGNORE INTO episodes (uid, phase, episode, record) VALUES (?, ?, ?, ?)",
            (uid, phase, record.index, msgspec.msgpack.encode(record)),
        )

    def task(self, uid: str, phase: int, record: TaskRecord) -> bool:
        """Records an ended run of a task; False when it was on record already."""
        return self._insert_once(
            "INSERT OR IGNORE INTO tasks (uid, phase, task, run, record) VALUES (?, ?, ?, ?, ?)",
            (uid, phase, record.task, record.run, msgspec.msgpack.encode(record)),
        )

    def outcome(self, result: RunResult) -> RunOutcome:
        """Sets the outcome and its result, and gives the outcome that stands: the first one."""
        self._connection.execute(
            "UPDATE runs SET outcome = ?, reason = ?, result = ? WHERE uid = ? AND outcome IS NULL",
            (result.outcome, result.reason, msgspec.msgpack.encode(result), result.uid),
        )
        (outcome,) = self._connection.execute(
            "SELECT outcome FROM runs WHERE uid = ?", (result.uid,)
        ).fetchone()
        if outcome not in get_args(RunOutcome):
            raise ValueError(f"run {result.uid} has no known outcome: {outcome!r}")
        known: RunOutcome = outcome
        return known

    def ended(self, uid: str) -> None:
        """The run is over: nothing of it is left but its record."""
        self._connection.execute(
            "UPDATE runs SET ended_at = coalesce(ended_at, ?) WHERE uid = ?", (time.time(), uid)
        )

    def _insert_once(self, statement: str, values: tuple[Any, ...]) -> bool:
        return self._connection.execute(statement, values).rowcount == 1
