"""What a run has from the one that it resumes, as it is recorded.

Tasks are recorded some at a time, before the run is accepted: others write meanwhile. Its row is marked as that of a pruned run
until then: nobody finds it, and what a crash leaves of it is removed like any pruned run (`RunsTable.reserved` keeps it as long
as this process works on it).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from sqlite3 import IntegrityError
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor import clock
from governor.errors import RecordDamaged
from governor.journal.failures import INHERITED
from governor.messages import TaskRecord

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from governor.messages.figures import PhaseFigures

TOGETHER: Final = 2_000
"""Task runs in one transaction, and in a row of `records`; more if a row of the resumed run has more."""
_ROWS: Final = (
    "SELECT records.position, data FROM runs JOIN records ON records.run = runs.position"
    " WHERE uid = ? AND kind = 'task' AND phase = ? AND records.position > ? ORDER BY records.position"
)


class Inheritance(ABC):
    """The part of a transaction that is for runs that resume others."""

    _connection: sqlite3.Connection

    @abstractmethod
    def _position(self, uid: str) -> int:
        """That of the run's row."""

    @abstractmethod
    def tasks(
        self, uid: str, phase: int, records: Sequence[TaskRecord], *, ended: bool = True
    ) -> list[TaskRecord]:
        """Records runs of tasks."""

    @abstractmethod
    def events(self, uid: str, kind: str, data: Sequence[dict[str, Any]]) -> None:
        """Records events of one kind."""

    def reserve(self, uid: str) -> None:
        """Makes a row for a run that is not accepted yet."""
        now = clock.wall()
        self._connection.execute(
            "INSERT INTO runs (uid, name, spec, folder, submitted_at, ended_at, pruned_at) VALUES (?, '', ?, '', ?, ?, ?)",
            (uid, msgspec.msgpack.encode({}), now, now, now),
        )

    def _accept(self, uid: str, values: dict[str, Any]) -> None:
        """Makes the row of a run, which may have been reserved."""
        values = {"uid": uid, **values, "ended_at": None, "pruned_at": None}
        names = ", ".join(values)
        made = self._connection.execute(
            f"INSERT INTO runs ({names}) VALUES ({', '.join('?' * len(values))})"  # noqa: S608  # our own names
            f" ON CONFLICT (uid) DO UPDATE SET ({names}) = ({', '.join(f'excluded.{name}' for name in values)})"
            " WHERE pruned_at IS NOT NULL AND removed = 0",
            tuple(values.values()),
        )
        if made.rowcount != 1:
            raise IntegrityError(f"run {uid} is on record already")

    def inherit_episodes(self, uid: str, phase: int, figures: PhaseFigures) -> None:
        """Records the episodes of a phase that the run has from the one that it resumes, by their figures."""
        packed = msgspec.msgpack.encode(figures)
        self._connection.execute(
            "INSERT INTO figures (run, phase, records, data, inherited) VALUES (?, ?, 0, ?, ?)",
            (self._position(uid), phase, packed, packed),
        )

    def inherit_failures(self, uid: str, parent: str, failures: Sequence[dict[str, Any]]) -> None:
        """Records failures that the run has from `parent`, which it resumes, as data of events, and their tracebacks."""
        self.events(uid, INHERITED, failures)
        position = self._position(uid)
        digests = {digest for each in failures if (digest := each["item"].get("traceback"))}
        self._connection.executemany(
            "INSERT OR IGNORE INTO tracebacks (run, digest, text) SELECT ?, tracebacks.digest, text"
            " FROM runs JOIN tracebacks ON run = position WHERE uid = ? AND tracebacks.digest = ?",
            [(position, parent, digest) for digest in digests],
        )

    def inherit_tasks(
        self, uid: str, phase: int, parent: str, keeps: Callable[[TaskRecord], bool], *, after: int = 0
    ) -> int:
        """Records some task runs of a phase of `parent`, those that it `keeps`, as this run's own: of its rows `after` this one.
        Returns the last row that was read; 0 at the end.
        """
        read, last, kept = 0, 0, list[TaskRecord]()
        for position, data in self._connection.execute(_ROWS, (parent, phase, after)):
            try:
                records = msgspec.msgpack.decode(data, type=list[TaskRecord])
            except (msgspec.MsgspecError, TypeError, ValueError) as error:
                raise RecordDamaged(parent, f"records of tasks of phase {phase}", str(error)) from error
            kept += filter(keeps, records)
            read += len(records)
            if read >= TOGETHER:
                last = position
                break
        for first in range(0, len(kept), TOGETHER):
            self.tasks(uid, phase, kept[first : first + TOGETHER], ended=False)
        return last
