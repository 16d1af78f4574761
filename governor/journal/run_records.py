"""The questions about the record of one run: its events, episodes, tasks, failures and figures.

They only read, whoever has the connection: the daemon's journal, or a report of a run whose daemon is gone.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from governor.errors import RecordDamaged
from governor.journal import failures, record_check
from governor.journal.groups import GroupRecords
from governor.journal.outbox import OutboxRecords
from governor.journal.runs_table import RunsTable
from governor.journal.tables import (
    EVENTS_OF_RUN,
    RECORD_OF,
    RECORDS_OF_PHASE,
    decoded,
    plain_events,
    read_events,
)
from governor.messages import EpisodeRecord, RunEvent, RunResult, TaskRecord
from governor.messages.figures import PhaseFigures

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from governor.journal.runs_table import RunRow

T = TypeVar("T")
PAGE: Final = 500
"""Events read at once."""


class RunRecords(RunsTable, GroupRecords, OutboxRecords):
    """Each question blocks; raises JournalError, and RecordDamaged for a value that can't be read."""

    def result_file(self, uid: str) -> str | None:
        """The path of the whole result in the run's folder, when the journal has the result without its tasks."""
        path: str | None = self._value("SELECT result_file FROM runs WHERE uid = ?", uid)
        return path

    def result(self, uid: str) -> RunResult | None:
        packed = self._value("SELECT result FROM runs WHERE uid = ?", uid)
        return decoded(uid, "runs.result", packed, RunResult) if packed is not None else None

    def events(
        self, uid: str, *, after: int = 0, limit: int = PAGE, kinds: Sequence[str] = ()
    ) -> list[RunEvent]:
        """The events above number `after`, of these kinds if any are given: `limit` of them, and those that were recorded together
        with the last one.
        """
        found: list[RunEvent] = []
        of_kinds = f" AND events.kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        for row in self._rows(f"{EVENTS_OF_RUN} AND last > ?{of_kinds} ORDER BY last", (uid, after, *kinds)):
            found += [event for event in read_events(row) if event.seq > after]
            if len(found) >= limit:
                break
        return found

    def submitters(self, uids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Who submitted these runs, where that is on record: see `RunResult.submitted_by`."""
        marks = ", ".join("?" * len(uids))
        question = f"SELECT uid, data FROM runs JOIN events ON run = position AND last = 1 WHERE uid IN ({marks}) AND kind = 'run.accepted'"  # noqa: S608
        found: dict[str, dict[str, Any]] = {}
        for uid, packed in self._rows(question, tuple(uids)):
            with suppress(RecordDamaged):
                found[uid] = plain_events(uid, "events, number 1", packed)[0].get("by", {})
        return found

    def last_of_daemon(self, kinds: Sequence[str]) -> RunEvent | None:
        """The last event of these kinds about the daemon itself: it has no `uid`."""
        marks = ", ".join("?" * len(kinds))
        question = f"SELECT position, at, kind, data FROM daemon_events WHERE kind IN ({marks}) ORDER BY position DESC LIMIT 1"  # noqa: S608
        for position, at, kind, packed in self._rows(question, tuple(kinds)):
            data = decoded("", f"daemon_events, number {position}", packed, dict[str, Any])
            return RunEvent(uid="", seq=position, at=at, kind=kind, data=data)
        return None

    def latest(self, uid: str) -> RunEvent | None:
        """The last event on record."""
        row = next(self._rows(f"{EVENTS_OF_RUN} ORDER BY last DESC LIMIT 1", (uid,)), None)
        return read_events(row)[-1] if row else None

    def events_of(self, uid: str, kinds: tuple[str, ...]) -> list[RunEvent]:
        """The events of these kinds, in their order."""
        return [*self.each_event_of(uid, kinds)]

    def each_event_of(self, uid: str, kinds: tuple[str, ...]) -> Iterator[RunEvent]:
        """As `events_of`, for those of which there may be millions."""
        marks = ", ".join("?" * len(kinds))
        few = " AND events.records IS NULL" if RECORD_OF.keys().isdisjoint(kinds) else ""
        rows = self._rows(f"{EVENTS_OF_RUN} AND events.kind IN ({marks}){few} ORDER BY last", (uid, *kinds))
        for row in rows:
            yield from read_events(row)

    def standing_events_of(self, uid: str, kinds: tuple[str, ...]) -> list[RunEvent]:
        """As `events_of`, without events from before a restart of the run, which are discarded."""
        begun = self.last_event(uid, "run.restarted")
        return [event for event in self.events_of(uid, kinds) if event.seq > begun]

    def last_event(self, uid: str, *kinds: str) -> int:
        """The number of the last event, of these kinds if any are given; 0 for none."""
        of_kinds = f" AND kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        question = f"SELECT last FROM runs JOIN events ON run = position WHERE uid = ?{of_kinds} ORDER BY last DESC LIMIT 1"  # noqa: S608
        return int(self._value(question, uid, *kinds) or 0)

    def episodes(self, uid: str, phase: int, *, after: int = 0) -> Iterator[EpisodeRecord]:
        """The ended episodes of a phase, in the order in which they ended; those recorded `after` a row of its figures."""
        return self._records(uid, "episode", phase, list[EpisodeRecord], after=after)

    def tasks(self, uid: str, phase: int) -> Iterator[TaskRecord]:
        """The ended runs of tasks of a phase, in the order in which they ended."""
        return self._records(uid, "task", phase, list[TaskRecord])

    def _records(
        self, uid: str, kind: str, phase: int, type_: type[list[T]], *, after: int = 0
    ) -> Iterator[T]:
        place = f"records of {kind}s of phase {phase}"
        for (data,) in self._rows(RECORDS_OF_PHASE, (uid, kind, phase, after)):
            yield from decoded(uid, place, data, type_)

    def failed_events(self, uid: str, *, after: int = 0, phase: int | None = None) -> Iterator[RunEvent]:
        """The events of rows with failures, above number `after`; of episodes and tasks those of one `phase`, if given."""
        question = f"{EVENTS_OF_RUN}{failures.FAILED}"
        for row in self._rows(question, (uid, after, phase, phase)):
            yield from (event for event in read_events(row) if event.seq > after)

    def causes(self, uid: str, phase: int) -> list[failures.Cause]:
        """The causes of a phase's failures, in the order of the first one of each."""
        return failures.causes(self._rows, uid, phase)

    def traceback(self, uid: str, digest: str) -> str | None:
        """None: it was not kept."""
        question = (
            "SELECT text FROM runs JOIN tracebacks ON run = position WHERE uid = ? AND tracebacks.digest = ?"
        )
        text: str | None = self._value(question, uid, digest)
        return text

    def runs_ended(self, uid: str, phase: int, task: str) -> int:
        """Of one task."""
        question = "SELECT count(*) FROM runs JOIN ended_tasks ON run = position WHERE uid = ? AND phase = ? AND task = ?"
        return int(self._value(question, uid, phase, task) or 0)

    def has_run_ended(self, uid: str, phase: int, task: str, run: int) -> bool:
        question = "SELECT 1 FROM runs JOIN ended_tasks ON run = position WHERE uid = ? AND phase = ? AND task = ? AND number = ?"
        return self._value(question, uid, phase, task, run) is not None

    def tasks_ended(self, uid: str, phase: int) -> int:
        """The number of runs of tasks of a phase that have ended."""
        question = "SELECT count(*) FROM runs JOIN ended_tasks ON run = position WHERE uid = ? AND phase = ?"
        return int(self._value(question, uid, phase) or 0)

    def figures(self, uid: str, phase: int) -> tuple[PhaseFigures, int]:
        """The running figures of a phase as kept last, and the row of the last record in them. If this version can't read them,
        or there are none: those of the inherited episodes, and 0.
        """
        question = "SELECT records, data FROM runs JOIN figures ON run = position WHERE uid = ? AND phase = ?"
        row = next(self._rows(question, (uid, phase)), None)
        if row is not None and isinstance(row[0], int):
            with suppress(msgspec.MsgspecError, TypeError):
                return msgspec.msgpack.decode(row[1], type=PhaseFigures), row[0]
        return self.inherited_figures(uid, phase), 0

    def inherited_figures(self, uid: str, phase: int) -> PhaseFigures:
        """Those of the episodes that the run has from the one that it resumes. Raises RecordDamaged."""
        question = "SELECT inherited FROM runs JOIN figures ON run = position WHERE uid = ? AND phase = ?"
        packed = self._value(question, uid, phase)
        return PhaseFigures() if packed is None else decoded(uid, "figures.inherited", packed, PhaseFigures)

    def require_sound(self, uid: str, *, phases: int) -> None:
        """Checks that all of the run's record can be read. Blocks. Raises RecordDamaged."""
        record_check.check(self._rows, uid, phases=phases)

    def readable(self, row: RunRow, kind: str) -> list[dict[str, Any]]:
        """The readable events of this kind of the run, whatever else of its record is damaged."""
        return record_check.readable(self._rows, row.position, kind)
