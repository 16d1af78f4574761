"""The journal's tables, and the changes of them: one method of `Transaction` for each kind of change.

Rules: a run is inserted once for a client's key; an episode or a run of a task is recorded once, the first record
counts; an outcome is set once, the first readable one counts. Of a pruned run (`governor.journal.retention`) the row in
`runs` is kept, with its key.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import msgspec

from governor import clock
from governor.errors import NoSuchRun, RecordDamaged
from governor.journal import failures, outbox
from governor.journal.excerpts import metrics_of, phases_of
from governor.journal.groups import GroupChanges
from governor.journal.inheritance import Inheritance
from governor.journal.outbox import OutboxChanges
from governor.journal.schema import LARGEST, UNENDED
from governor.messages import EpisodeRecord, RunEvent, RunOutcome, RunResult, TaskRecord
from governor.messages.figures import PhaseFigures

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from governor.journal.runs_table import RunRow
GIVING_BACK_SECONDS: Final = 0.01
R = TypeVar("R", bound=EpisodeRecord | TaskRecord)
T = TypeVar("T")


EVENTS_OF_RUN: Final = (
    "SELECT uid, last, events.number, at, events.kind, events.data, records.phase, records.data FROM runs"
    " JOIN events ON events.run = runs.position LEFT JOIN records ON records.position = events.records"
    " WHERE uid = ?"
)
RECORDS_OF_PHASE: Final = (
    "SELECT data FROM runs JOIN records ON records.run = runs.position"
    " WHERE uid = ? AND kind = ? AND phase = ? AND records.position > ? ORDER BY records.position"
)
RECORD_OF: Final = {"episode.ended": "episode", "task.ended": "record"}
"""The key of the record in the data of an event."""


def decoded(uid: str, place: str, packed: Any, kind: type[T]) -> T:
    """Raises RecordDamaged."""
    try:
        return msgspec.msgpack.decode(packed, type=kind)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise RecordDamaged(uid, place, str(error)) from error


def plain_events(uid: str, place: str, packed: Any) -> list[dict[str, Any]]:
    """Raises RecordDamaged."""
    return decoded(uid, place, packed, list[dict[str, Any]])


def read_events(row: tuple[Any, ...]) -> list[RunEvent]:
    """The events of a row of `EVENTS_OF_RUN`. Raises RecordDamaged."""
    uid, last, number, at, kind, packed, phase, records = row
    place = f"events, number {last!r}"
    if packed is None and kind in RECORD_OF:
        events = [{"phase": phase, RECORD_OF[kind]: each} for each in plain_events(uid, place, records)]
    else:
        events = plain_events(uid, place, packed)
    if not (
        isinstance(last, int) and number == len(events) and isinstance(at, float) and isinstance(kind, str)
    ):
        raise RecordDamaged(uid, place, f"{number!r} of {kind!r} at {at!r}")
    return [
        RunEvent(uid=uid, seq=seq, at=at, kind=kind, data=data)
        for seq, data in enumerate(events, start=last - number + 1)
    ]


@dataclass(slots=True)
class _Numbers:
    """The row of a run and the number of its last event: until the commit no other transaction adds events."""

    run: int
    last: int


_ENDED: Final = {
    "episode": "INSERT OR IGNORE INTO ended_episodes (run, phase, episode) VALUES (?, ?, ?)",
    "task": "INSERT OR IGNORE INTO ended_tasks (run, phase, task, number) VALUES (?, ?, ?, ?)",
}
_TABLES_OF_RUN: Final = ("figures", "causes", "tracebacks", "run_labels")
_REMOVE: Final = (
    "DELETE FROM events WHERE run = ?1 AND last IN (SELECT last FROM events WHERE run = ?1 LIMIT ?2)",
    "DELETE FROM records WHERE position IN (SELECT position FROM records WHERE run = ?1 LIMIT ?2)",
    "DELETE FROM ended_episodes WHERE run = ?1 AND (phase, episode) IN (SELECT phase, episode FROM ended_episodes WHERE run = ?1 LIMIT ?2)",
    "DELETE FROM ended_tasks WHERE run = ?1 AND (phase, task, number) IN (SELECT phase, task, number FROM ended_tasks WHERE run = ?1 LIMIT ?2)",
    *(f"DELETE FROM {name} WHERE run = ?1 AND ?2" for name in _TABLES_OF_RUN),  # noqa: S608  # our own names
    outbox.REMOVE,
)


class Transaction(Inheritance, GroupChanges, OutboxChanges):
    """One group of changes in the writer's thread. `touched` are the runs that have new events. `hooks` are those of all runs, by name."""

    def __init__(self, connection: sqlite3.Connection, hooks: Mapping[str, Any]) -> None:
        self._connection = connection
        self._hooks = hooks
        self.has_due = False
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
        digest: bytes | None = None,
        by: dict[str, Any] | None = None,
        code: dict[str, Any] | None = None,
        group: str | None = None,
        cell: int | None = None,
        params: dict[str, Any] | None = None,
    ) -> str:
        """Records a run and returns its uid; that of the earlier run where the key was used before. `by`, `code`: as of `accepted`;
        `group`, `cell`, `params`: as of `RunLine`.

        Raises NoSuchRun when the parent was pruned meanwhile.
        """
        if key is not None:
            known = self._connection.execute("SELECT uid FROM runs WHERE key = ?", (key,)).fetchone()
            if known:
                return str(known[0])
        gone = "SELECT 1 FROM runs WHERE uid = ? AND pruned_at IS NOT NULL"
        if parent is not None and self._connection.execute(gone, (parent,)).fetchone():
            raise NoSuchRun(parent, f"run {parent} was pruned just now")
        packed = msgspec.msgpack.encode(spec)
        values = {"key": key, "name": name, "spec": packed, "folder": folder, "submitted_at": clock.wall()}
        self._accept(uid, {**values, "parent": parent, "digest": digest, "phases": phases_of(packed)})
        self.belongs(uid, group=group, cell=cell, params=params or {}, labels=spec.get("labels", {}))
        self.accepted(uid, {"name": name, "phases": len(spec.get("phases", ()))}, by=by, code=code)
        return uid

    def resumed_by(self, uid: str) -> str | None:
        """The unended run that resumes this one."""
        row = self._connection.execute(
            f"SELECT uid FROM runs WHERE parent = ? AND {UNENDED}",  # noqa: S608  # our own
            (uid,),
        ).fetchone()
        return str(row[0]) if row else None

    def event(self, uid: str, kind: str, data: dict[str, Any]) -> None:
        """Records the next event of a run."""
        self.events(uid, kind, [data])

    def events(self, uid: str, kind: str, data: Sequence[dict[str, Any]]) -> None:
        """Records the next events of a run, all of one kind, in one row."""
        self._insert_events(uid, kind, data)

    def event_of_daemon(self, kind: str, data: dict[str, Any]) -> None:
        """Records what was asked of the daemon itself."""
        self._connection.execute(
            "INSERT INTO daemon_events (at, kind, data) VALUES (?, ?, ?)",
            (clock.wall(), kind, msgspec.msgpack.encode(data)),
        )

    def _insert_events(
        self, uid: str, kind: str, items: Sequence[Any], *, records: int | None = None, phase: int = -1
    ) -> None:
        """`items`: their data; or the records of a `phase`, in the row `records`."""
        numbers, number = self._numbers(uid), len(items)
        failed = failures.failed(kind, items)
        packed = msgspec.msgpack.encode(items) if records is None else None
        self._connection.execute(
            "INSERT INTO events (run, last, number, at, kind, data, records, failures) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (numbers.run, numbers.last + number, number, clock.wall(), kind, packed, records, len(failed)),
        )
        if failed:
            numbered = ((numbers.last + 1 + place, items[place]) for place in failed)
            failures.count_causes(self._connection, numbers.run, kind, numbered, phase=phase)
        if number == 1 and records is None:
            event = (kind, numbers.last + 1, items[0])
            self.has_due |= outbox.note(self._connection, numbers.run, event, self._hooks)
        numbers.last += number
        self.touched.add(uid)

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
            if not isinstance(row[1], int | None):
                raise RecordDamaged(uid, "events", f"one has the number {row[1]!r}")
            known = self._known[uid] = _Numbers(run=row[0], last=row[1] or 0)
        return known

    def _position(self, uid: str) -> int:
        return self._numbers(uid).run

    def rolled_back(self) -> None:
        """A change was rolled back: forgets the numbers that it may have changed."""
        self._known.clear()

    def started(self, uid: str) -> None:
        """Records the first start; a run that is continued in another invocation keeps it."""
        self._connection.execute(
            "UPDATE runs SET started_at = coalesce(started_at, ?) WHERE uid = ?", (clock.wall(), uid)
        )

    def episodes(self, uid: str, phase: int, records: Sequence[EpisodeRecord]) -> list[EpisodeRecord]:
        """Records episodes, with an event for each; returns those that were not on record yet."""
        return self._records("episode", uid, phase, records, [(each.index,) for each in records], ended=True)

    def tasks(
        self, uid: str, phase: int, records: Sequence[TaskRecord], *, ended: bool = True
    ) -> list[TaskRecord]:
        """Records runs of tasks, with an event for each if they `ended` just now; returns those that were not on record
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
            self._insert_events(uid, f"{kind}.ended", fresh, records=position, phase=phase)
        return fresh

    def traceback(self, uid: str, digest: str, text: str, *, first: bool) -> None:
        """Stores a traceback that records have the digest of, as of `failures.keep_traceback`."""
        failures.keep_traceback(self._connection, self._numbers(uid).run, digest, text, first=first)

    def figures(self, uid: str, phase: int, packed: bytes) -> None:
        """Keeps the running figures of a phase, of all its episodes that are on record now."""
        self._connection.execute(
            "INSERT INTO figures (run, phase, records, data) SELECT run, phase, max(position), ? FROM records"
            " WHERE run = ? AND kind = 'episode' AND phase = ? GROUP BY run, phase"
            " ON CONFLICT (run, phase) DO UPDATE SET records = excluded.records, data = excluded.data",
            (packed, self._numbers(uid).run, phase),
        )

    def restarted(self, uid: str) -> None:
        """Restarts the run: its events and records are kept, but do not count any more."""
        run = self._numbers(uid).run
        discarded = {}
        for kind, table in (("episode", "ended_episodes"), ("task", "ended_tasks")):
            discarded[f"{kind}s"] = self._connection.execute(
                f"DELETE FROM {table} WHERE run = ?",  # noqa: S608  # our own names
                (run,),
            ).rowcount
        self._connection.execute("UPDATE records SET kind = 'discarded ' || kind WHERE run = ?", (run,))
        inherited = "SELECT inherited FROM figures WHERE run = ? AND inherited IS NOT NULL"
        for (packed,) in self._connection.execute(inherited, (run,)):
            discarded["episodes"] += len(decoded(uid, "figures.inherited", packed, PhaseFigures).ended)
        for table in ("figures", "causes"):
            self._connection.execute(f"DELETE FROM {table} WHERE run = ?", (run,))  # noqa: S608  # our own names
        self.event(uid, "run.restarted", {"discarded": discarded})

    def _not_yet_ended(self, statement: str, keys: Sequence[tuple[Any, ...]]) -> list[bool]:
        """Inserts the keys; returns which of them are new. If all are new, one statement for all costs a third."""
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

    def outcome(self, result: RunResult, *, file: str | None = None) -> RunOutcome:
        """Sets the outcome and its result, and returns the outcome on record: the first one.

        If the whole result is in a `file` of the run's folder, the journal stores it without its tasks.
        """
        if file is not None:
            phases = tuple(msgspec.structs.replace(phase, tasks=()) for phase in result.phases)
            result = msgspec.structs.replace(result, phases=phases)
        packed = msgspec.msgpack.encode(result)
        self._connection.execute(
            "UPDATE runs SET outcome = ?, reason = ?, result = ?, result_file = ?, metrics = ?, seconds = ?"
            " WHERE uid = ? AND outcome IS NULL",
            (result.outcome, result.reason, packed, file, metrics_of(packed), result.seconds, result.uid),
        )
        (outcome,) = self._connection.execute(
            "SELECT outcome FROM runs WHERE uid = ?", (result.uid,)
        ).fetchone()
        if outcome not in get_args(RunOutcome):
            raise ValueError(f"run {result.uid} has no known outcome: {outcome!r}")
        known: RunOutcome = outcome
        return known

    def ended(self, uid: str) -> None:
        """Records the end of the run: it has no processes any more."""
        self._connection.execute(
            "UPDATE runs SET ended_at = coalesce(ended_at, ?) WHERE uid = ?", (clock.wall(), uid)
        )

    def end_damaged(self, row: RunRow, result: RunResult, *, file: str | None, by: str) -> None:
        """Ends a run whose record is damaged: replaces the unreadable values of its `row`. The record of its work is not
        changed. Does nothing if it has ended meanwhile. `file`: as of `outcome`.
        """
        packed = msgspec.msgpack.encode(result)
        values = row.columns() | {
            "ended_at": result.ended_at,
            "outcome": result.outcome,
            "reason": result.reason,
            "result": packed,
            "result_file": file,
            "metrics": metrics_of(packed),
            "seconds": result.seconds,
        }
        changed = self._connection.execute(
            f"UPDATE runs SET {', '.join(f'{name} = :{name}' for name in values)}"  # noqa: S608  # our own names
            f" WHERE position = :position AND {UNENDED}",
            {**values, "position": row.position},
        ).rowcount
        has_event = "SELECT 1 FROM events WHERE run = ? AND kind = 'run.ended'"
        if not changed or self._connection.execute(has_event, (row.position,)).fetchone():
            return
        (last,) = self._connection.execute(
            "SELECT coalesce(max(last), 0) FROM events WHERE run = ? AND typeof(last) = 'integer' AND last BETWEEN 0 AND ?",
            (row.position, LARGEST - 2),
        ).fetchone()
        self._known[row.uid] = _Numbers(run=row.position, last=last)
        self.event(row.uid, "run.ended", {"outcome": result.outcome, "reason": result.reason, "by": by})

    # -- pruning -----------------------------------------------------------------------------------------------

    def mark_pruned(self, uids: Sequence[str]) -> list[str]:
        """Marks ended runs as pruned, so that they can't be found; returns those that it has marked."""
        mark = "UPDATE runs SET pruned_at = ? WHERE uid = ? AND ended_at IS NOT NULL AND pruned_at IS NULL"
        now = clock.wall()
        return [uid for uid in uids if self._connection.execute(mark, (now, uid)).rowcount == 1]

    def remove_rows(self, uid: str, limit: int) -> bool:
        """Removes some rows of a marked run, up to `limit`, and with the last of them all but its key; returns whether there
        are more.
        """
        marked = "SELECT position FROM runs WHERE uid = ? AND pruned_at IS NOT NULL"
        found = self._connection.execute(marked, (uid,)).fetchone()
        if found is None:
            return False
        for statement in _REMOVE:
            limit -= self._connection.execute(statement, (found[0], limit)).rowcount
            if limit <= 0:
                return True
        self._removed(uid)
        return False

    def _removed(self, uid: str) -> None:
        self._connection.execute(
            "UPDATE runs SET removed = 1, spec = ?, result = NULL, metrics = NULL, params = NULL, labels = NULL"
            " WHERE uid = ? AND pruned_at IS NOT NULL",
            (msgspec.msgpack.encode({}), uid),
        )

    def give_back(self, pages: int) -> bool:
        """Returns free pages to the disk, for `GIVING_BACK_SECONDS` at most; returns whether more can be returned."""
        (before,) = self._connection.execute("PRAGMA freelist_count").fetchone()
        until = time.monotonic() + GIVING_BACK_SECONDS
        for _ in range(min(pages, before)):
            self._connection.execute("PRAGMA incremental_vacuum(1)")  # of (N) Python takes one step, too
            if time.monotonic() >= until:
                break
        (free,) = self._connection.execute("PRAGMA freelist_count").fetchone()
        return bool(0 < free < before)
