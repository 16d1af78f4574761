"""Groups of runs and labels, as they are on record.

Rules:
1. A group and all of its runs are accepted in one transaction, once for a client's key.
2. The cells of a group are numbered; a run that resumes one of them has its number, too: the last run of a cell counts.
3. What ends a group's runs is on record before they end: up to which row an abort goes, from which row on a failure counts.
4. Labels are twice on record: in the row of the run to be shown, in a table of their own to be searched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor import clock
from governor.journal.excerpts import metrics_of_phase, phases_of
from governor.journal.runs_table import FOUND, LAST
from governor.journal.schema import UNENDED

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

_NEWEST: Final = "(SELECT coalesce(max(position), 0) FROM runs WHERE group_uid = groups.uid)"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group as recorded, `position` apart."""

    uid: str
    name: str
    submitted_at: float
    runs: int
    paths: tuple[str, ...] = ()
    key: str | None = None
    digest: bytes | None = None
    max_parallel: int | None = None
    fail_fast: bool = False
    fails_after: int = 0
    aborted_to: int = 0
    abort_reason: str = ""
    abort_by: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to be recorded: `spec` in msgpack, as of `phases` phases. `cell` is its number in the group, `folder` that of its code."""

    uid: str
    name: str
    spec: bytes
    phases: int
    cell: int
    folder: str
    digest: bytes | None = None
    params: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


_COLUMNS: Final = tuple(GroupRow.__dataclass_fields__)
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM groups"  # noqa: S608  # our own


def _row(values: tuple[Any, ...]) -> GroupRow:
    stored = dict(zip(_COLUMNS, values, strict=True))
    stored["paths"] = msgspec.msgpack.decode(stored["paths"], type=tuple[str, ...])
    stored["abort_by"] = {} if stored["abort_by"] is None else msgspec.msgpack.decode(stored["abort_by"])
    return msgspec.convert(stored, GroupRow, strict=False)


def packed_or_none(values: dict[str, Any]) -> bytes | None:
    """In msgpack, as the columns `params` and `labels` have them."""
    return msgspec.msgpack.encode(values) if values else None


class GroupRecords(ABC):
    """The questions about groups. Each blocks; raises JournalError."""

    @abstractmethod
    def _rows(self, question: str, parameters: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of an answer."""

    def groups(self, condition: str, *parameters: Any) -> list[GroupRow]:
        return [_row(row) for row in self._rows(f"{_SELECT} WHERE {condition}", parameters)]

    def group(self, uid: str) -> GroupRow | None:
        return next(iter(self.groups("uid = ?", uid)), None)

    def group_of_key(self, key: str) -> GroupRow | None:
        return next(iter(self.groups("key = ?", key)), None)

    def find_groups(self, prefix: str) -> list[GroupRow]:
        """Those whose uids begin so, five at most."""
        return self.groups(f"uid >= ? AND uid < ? LIMIT {FOUND}", prefix, prefix + LAST)

    def failed_run(self, group: str) -> str | None:
        """The first run whose failure ends a group with `fail_fast`."""
        question = (
            "SELECT runs.uid FROM groups JOIN runs ON group_uid = groups.uid AND runs.position > fails_after"
            " WHERE groups.uid = ? AND outcome = 'failed' ORDER BY runs.position LIMIT 1"
        )
        return next((str(uid) for (uid,) in self._rows(question, (group,))), None)

    def unended_of_group(self, uid: str, *, limit: int = -1) -> list[tuple[str, int, bool]]:
        """Uid and row of its runs that have not ended, and whether they have begun; in the order of submission. All, or the first ones."""
        question = f"SELECT uid, position, started_at FROM runs WHERE {UNENDED} AND group_uid = ? ORDER BY position LIMIT ?"  # noqa: S608  # our own
        return [
            (str(run), position, at is not None) for run, position, at in self._rows(question, (uid, limit))
        ]

    def phase_metrics(self, uid: str, phase: str) -> dict[str, dict[str, float]]:
        """The metrics of a phase of each of its runs that has ended, by their uids."""
        rows = self._rows("SELECT uid, result FROM runs WHERE group_uid = ?", (uid,))
        return {str(run): metrics_of_phase(result, phase) for run, result in rows}


class GroupChanges(ABC):
    """The part of a transaction that is for groups and labels."""

    _connection: sqlite3.Connection

    @abstractmethod
    def event(self, uid: str, kind: str, data: dict[str, Any]) -> None:
        """Records the next event of a run."""

    @abstractmethod
    def _accept(self, uid: str, values: dict[str, Any]) -> None:
        """Makes the row of a run."""

    @abstractmethod
    def _position(self, uid: str) -> int:
        """That of the run's row."""

    def submit_group(
        self,
        group: GroupRow,
        runs: Sequence[NewRun],
        *,
        by: dict[str, Any] | None = None,
        code: dict[str, Any] | None = None,
    ) -> GroupRow:
        """Records a group with its runs and returns it; the earlier one where the key was used before. `by`, `code`: as of `accept`."""
        known = self._connection.execute(f"{_SELECT} WHERE key = ?", (group.key,)).fetchone()
        if known is not None:
            return _row(known)
        values = {name: getattr(group, name) for name in _COLUMNS}
        values["paths"] = msgspec.msgpack.encode(group.paths)
        values["abort_by"] = packed_or_none(group.abort_by)
        self._connection.execute(
            f"INSERT INTO groups ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})",  # noqa: S608  # our own
            tuple(values.values()),
        )
        at = clock.wall()
        for run in runs:
            columns = {
                "key": None,
                "name": run.name,
                "spec": run.spec,
                "folder": run.folder,
                "submitted_at": at,
            }
            self._accept(run.uid, {**columns, "digest": run.digest, "phases": run.phases})
            self.belongs(run.uid, group=group.uid, cell=run.cell, params=run.params, labels=run.labels)
            about = {"name": run.name, "phases": run.phases, "group": group.uid}
            self.accepted(run.uid, about, by=by, code=code)
        return group

    def accepted(
        self, uid: str, about: dict[str, Any], *, by: dict[str, Any] | None, code: dict[str, Any] | None
    ) -> None:
        """Records the first event of a run. `by`: who submits it; `code`: what is known of its code."""
        self.event(uid, "run.accepted", about | ({"by": by} if by else {}) | ({"code": code} if code else {}))

    def belongs(
        self,
        uid: str,
        *,
        group: str | None,
        cell: int | None,
        params: dict[str, Any],
        labels: dict[str, str],
    ) -> None:
        """Records what a new run is found by."""
        if group is not None:
            self._connection.execute(
                "UPDATE runs SET group_uid = ?, cell = ? WHERE uid = ?", (group, cell, uid)
            )
        if params or labels:
            self.describe(uid, params=params, labels=labels)

    def describe(self, uid: str, *, params: dict[str, Any], labels: dict[str, str]) -> None:
        """Records the values and labels that a run is found by, instead of those that it had."""
        self._connection.execute(
            "UPDATE runs SET params = ?, labels = ? WHERE uid = ?",
            (packed_or_none(params), packed_or_none(labels), uid),
        )
        run = self._position(uid)
        self._connection.execute("DELETE FROM run_labels WHERE run = ?", (run,))
        self._connection.executemany(
            "INSERT OR REPLACE INTO run_labels (run, key, value) VALUES (?, ?, ?)",
            [(run, key, value) for key, value in labels.items()],
        )

    def respecify(
        self, uid: str, *, name: str, spec: dict[str, Any], params: dict[str, Any], labels: dict[str, str]
    ) -> None:
        """Another run file of a run that has not ended. The digest stays that of what was submitted."""
        packed = msgspec.msgpack.encode(spec)
        self._connection.execute(
            "UPDATE runs SET name = ?, spec = ?, phases = ? WHERE uid = ?",
            (name, packed, phases_of(packed), uid),
        )
        self.describe(uid, params=params, labels=labels)

    def abort_group(self, uid: str, reason: str, by: dict[str, Any] | None = None) -> GroupRow | None:
        """All runs that it has now end; the first one who asks for it counts. Returns the group."""
        self._connection.execute(
            f"UPDATE groups SET abort_reason = ?, abort_by = ?, aborted_to = {_NEWEST}"  # noqa: S608  # our own
            f" WHERE uid = ? AND aborted_to < {_NEWEST}",
            (reason, packed_or_none(by or {}), uid),
        )
        return self._group(uid)

    def resume_group(self, uid: str) -> GroupRow | None:
        """Failures of runs that it has now no longer count. Returns the group."""
        self._connection.execute(
            f"UPDATE groups SET fails_after = {_NEWEST} WHERE uid = ?",  # noqa: S608  # our own
            (uid,),
        )
        return self._group(uid)

    def _group(self, uid: str) -> GroupRow | None:
        found = self._connection.execute(f"{_SELECT} WHERE uid = ?", (uid,)).fetchone()
        return None if found is None else _row(found)
