"""The journal's tables, and what may be written into them: one method of `Transaction` for each kind of change.

Rules: a run is inserted once for a client's key; an episode or a run of a task is recorded once, the first record
stays; an outcome is set once, the first one stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, get_args

import msgspec

from governor import clock
from governor.messages import EpisodeRecord, RunEvent, RunOutcome, RunResult, TaskRecord

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

R = TypeVar("R", bound=EpisodeRecord | TaskRecord)
SCHEMA_VERSION: Final = 3
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
    parent TEXT
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
}
"""From each schema to the next one; ``packed(data)`` is `array_of_one`."""


def array_of_one(document: bytes) -> bytes:
    """An array in msgpack, of a document that is packed already."""
    return b"\x91" + document


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


EVENTS_OF_RUN: Final = (
    "SELECT uid, last, events.number, at, events.kind, events.data, records.phase, records.data FROM runs"
    " JOIN events ON events.run = runs.position LEFT JOIN records ON records.position = events.records"
    " WHERE uid = ?"
)
RECORDS_OF_PHASE: Final = (
    "SELECT data FROM runs JOIN records ON records.run = runs.position"
    " WHERE uid = ? AND kind = ? AND phase = ? ORDER BY records.position"
)
_RECORD: Final = {"episode.ended": "episode", "task.ended": "record"}
"""Where an event has its record."""


def read_events(row: tuple[Any, ...]) -> list[RunEvent]:
    """The events of a row of `EVENTS_OF_RUN`."""
    uid, last, number, at, kind, packed, phase, records = row
    if packed is not None:
        told = msgspec.msgpack.decode(packed)
    else:
        told = [{"phase": phase, _RECORD[kind]: record} for record in msgspec.msgpack.decode(records)]
    return [
        RunEvent(uid=uid, seq=seq, at=at, kind=kind, data=data)
        for seq, data in enumerate(told, start=last - number + 1)
    ]


@dataclass(slots=True)
class _Numbers:
    """The row of a run and the number of its last event: ours are the only new ones until we commit."""

    run: int
    last: int


_ENDED: Final = {
    "episode": "INSERT OR IGNORE INTO ended_episodes (run, phase, episode) VALUES (?, ?, ?)",
    "task": "INSERT OR IGNORE INTO ended_tasks (run, phase, task, number) VALUES (?, ?, ?, ?)",
}


class Transaction:
    """One group of changes in the writer's thread. `touched` are the runs that have new events."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[str, _Numbers] = {}
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
            (uid, key, name, msgspec.msgpack.encode(spec), folder, clock.wall(), parent),
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
        at = self.events(uid, kind, [data])
        return RunEvent(uid=uid, seq=self._known[uid].last, at=at, kind=kind, data=data)

    def events(self, uid: str, kind: str, data: Sequence[dict[str, Any]]) -> float:
        """Records the next events of a run, all of one kind, in one row; when."""
        return self._insert_events(uid, kind, len(data), packed=msgspec.msgpack.encode(data))

    def _insert_events(
        self, uid: str, kind: str, number: int, *, packed: bytes | None = None, records: int | None = None
    ) -> float:
        numbers = self._numbers(uid)
        at = clock.wall()
        self._connection.execute(
            "INSERT INTO events (run, last, number, at, kind, data, records) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (numbers.run, numbers.last + number, number, at, kind, packed, records),
        )
        numbers.last += number
        self.touched.add(uid)
        return at

    def _numbers(self, uid: str) -> _Numbers:
        """Raises LookupError for a run that is not on record."""
        known = self._known.get(uid)
        if known is None:
            row = self._connection.execute(
                "SELECT position, (SELECT max(last) FROM events WHERE run = position) FROM runs WHERE uid = ?",
                (uid,),
            ).fetchone()
            if row is None:
                raise LookupError(f"run {uid} is not on record")
            known = self._known[uid] = _Numbers(run=row[0], last=row[1] or 0)
        return known

    def rolled_back(self) -> None:
        """A change was undone: what was remembered of it does not count."""
        self._known.clear()

    def started(self, uid: str) -> None:
        """The first start counts; a run that goes on in another invocation keeps it."""
        self._connection.execute(
            "UPDATE runs SET started_at = coalesce(started_at, ?) WHERE uid = ?", (clock.wall(), uid)
        )

    def episodes(
        self, uid: str, phase: int, records: Sequence[EpisodeRecord], *, ended: bool = True
    ) -> list[EpisodeRecord]:
        """Records episodes, with an event for each where they `ended` just now; those that were not on record yet."""
        return self._records("episode", uid, phase, records, [(each.index,) for each in records], ended=ended)

    def tasks(
        self, uid: str, phase: int, records: Sequence[TaskRecord], *, ended: bool = True
    ) -> list[TaskRecord]:
        """Records runs of tasks, with an event for each where they `ended` just now; those that were not on record
        yet.
        """
        return self._records(
            "task", uid, phase, records, [(each.task, each.run) for each in records], ended=ended
        )

    def _records(
        self,
        kind: str,
        uid: str,
        phase: int,
        records: Sequence[R],
        keys: Sequence[tuple[Any, ...]],
        *,
        ended: bool,
    ) -> list[R]:
        run = self._numbers(uid).run
        new = self._not_yet_ended(_ENDED[kind], [(run, phase, *key) for key in keys])
        fresh = [record for record, is_new in zip(records, new, strict=True) if is_new]
        if not fresh:
            return []
        position = self._connection.execute(
            "INSERT INTO records (run, kind, phase, data) VALUES (?, ?, ?, ?)",
            (run, kind, phase, msgspec.msgpack.encode(fresh)),
        ).lastrowid
        if ended:
            self._insert_events(uid, f"{kind}.ended", len(fresh), records=position)
        return fresh

    def restarted(self, uid: str) -> None:
        """The run begins anew: its events stay, and with them what they tell of, but nothing of it counts any more."""
        run = self._numbers(uid).run
        discarded = {}
        for kind, table in (("episode", "ended_episodes"), ("task", "ended_tasks")):
            discarded[f"{kind}s"] = self._connection.execute(
                f"DELETE FROM {table} WHERE run = ?",  # noqa: S608  # our own names
                (run,),
            ).rowcount
        self._connection.execute("UPDATE records SET kind = 'discarded ' || kind WHERE run = ?", (run,))
        self.event(uid, "run.restarted", {"discarded": discarded})

    def _not_yet_ended(self, statement: str, keys: Sequence[tuple[Any, ...]]) -> list[bool]:
        """Takes note of the keys; which of them are new. All at once costs a third, as long as all are."""
        connection = self._connection
        connection.execute("SAVEPOINT keys")
        before = connection.total_changes
        connection.executemany(statement, keys)
        if connection.total_changes - before == len(keys):
            new = [True] * len(keys)
        else:
            connection.execute("ROLLBACK TO keys")
            new = [connection.execute(statement, key).rowcount == 1 for key in keys]
        connection.execute("RELEASE keys")
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
            "UPDATE runs SET ended_at = coalesce(ended_at, ?) WHERE uid = ?", (clock.wall(), uid)
        )
