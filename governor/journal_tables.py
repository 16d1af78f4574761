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
    from collections.abc import Sequence

SCHEMA_VERSION: Final = 2
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
    result BLOB,
    parent TEXT
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
MIGRATIONS: Final = {1: "ALTER TABLE runs ADD COLUMN parent TEXT;"}
"""From each schema to the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as it stands in the journal. Times are wall-clock seconds; `spec` is the run file as submitted; `parent` is
    the run that it resumes.
    """

    SELECT: ClassVar[str] = (
        "SELECT uid, key, name, spec, folder, submitted_at, started_at, ended_at, outcome, reason, parent FROM runs"
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
    parent: str | None = None


def read_row(row: tuple[Any, ...]) -> RunRow:
    uid, key, name, spec, folder, submitted_at, started_at, ended_at, outcome, reason, parent = row
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
        parent=parent,
    )


_INSERT_TASK = "INSERT OR IGNORE INTO tasks (uid, phase, task, run, record) VALUES (?, ?, ?, ?, ?)"


def _task_ended(phase: int, record: bytes) -> bytes:
    """``{"phase": phase, "record": record}`` in msgpack, of a record that is packed already."""
    return b"\x82\xa5phase" + msgspec.msgpack.encode(phase) + b"\xa6record" + record


class Transaction:
    """One group of changes in the writer's thread. `touched` are the runs that have new events."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._last: dict[str, int] = {}
        """Number of the last event, by run: ours are the only ones until we commit."""
        self.touched: set[str] = set()

    def submit(
        self,
        *,
        uid: str,
        key: str | None,
        name: str,
        spec: dict[str, Any],
        folder: str,
        parent: str | None = None,
    ) -> str:
        """Records a run and gives its uid; that of the earlier one where the key was used before."""
        if key is not None:
            known = self._connection.execute("SELECT uid FROM runs WHERE key = ?", (key,)).fetchone()
            if known:
                return str(known[0])
        self._connection.execute(
            "INSERT INTO runs (uid, key, name, spec, folder, submitted_at, parent) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (uid, key, name, msgspec.msgpack.encode(spec), folder, time.time(), parent),
        )
        self.event(uid, "run.accepted", {"name": name})
        return uid

    def resumed_by(self, uid: str) -> str | None:
        """The run that resumes this one at the moment."""
        row = self._connection.execute(
            "SELECT uid FROM runs WHERE parent = ? AND ended_at IS NULL", (uid,)
        ).fetchone()
        return str(row[0]) if row else None

    def event(self, uid: str, kind: str, data: dict[str, Any]) -> RunEvent:
        """Records the next event of a run."""
        seq, at = self.packed_event(uid, kind, msgspec.msgpack.encode(data))
        return RunEvent(uid=uid, seq=seq, at=at, kind=kind, data=data)

    def packed_event(self, uid: str, kind: str, data: bytes) -> tuple[int, float]:
        """As `event`, for data that is packed already; its number and time."""
        at = self._packed_events(uid, kind, [data])
        return self._last[uid], at

    def _packed_events(self, uid: str, kind: str, data: Sequence[bytes]) -> float:
        last = self._last.get(uid)
        if last is None:
            (last,) = self._connection.execute(
                "SELECT coalesce(max(seq), 0) FROM events WHERE uid = ?", (uid,)
            ).fetchone()
        at = time.time()
        rows = [(uid, seq, at, kind, each) for seq, each in enumerate(data, start=last + 1)]
        self._connection.executemany(
            "INSERT INTO events (uid, seq, at, kind, data) VALUES (?, ?, ?, ?, ?)", rows
        )
        self._last[uid] = last + len(rows)
        self.touched.add(uid)
        return at

    def rolled_back(self) -> None:
        """A change was undone: what was remembered of it does not count."""
        self._last.clear()

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
            _INSERT_TASK,
            (uid, phase, record.task, record.run, msgspec.msgpack.encode(record)),
        )

    def tasks_ended(self, uid: str, phase: int, records: Sequence[TaskRecord]) -> list[bool]:
        """Records ended runs of tasks and their events, in order; which of them were new. A third of the cost of one by
        one, as long as none was on record already.
        """
        packed = [msgspec.msgpack.encode(record) for record in records]
        rows = [(uid, phase, each.task, each.run, data) for each, data in zip(records, packed, strict=True)]
        self._connection.execute("SAVEPOINT tasks")
        before = self._connection.total_changes
        self._connection.executemany(_INSERT_TASK, rows)
        if self._connection.total_changes - before == len(rows):
            self._connection.execute("RELEASE tasks")
            self._packed_events(uid, "task.ended", [_task_ended(phase, data) for data in packed])
            return [True] * len(rows)
        self._connection.execute("ROLLBACK TO tasks")
        self._connection.execute("RELEASE tasks")
        new = []
        for row, data in zip(rows, packed, strict=True):
            new.append(self._insert_once(_INSERT_TASK, row))
            if new[-1]:
                self.packed_event(uid, "task.ended", _task_ended(phase, data))
        return new

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
