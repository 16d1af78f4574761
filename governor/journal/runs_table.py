"""The table of the runs as it is read: a line about a run from its columns, or the whole row with its run file.

Rules:
1. A line needs neither the run file nor the result of its run: what it shows of them has columns of its own (`excerpts`).
2. The cost of a question is that of its answer, whatever number of runs has ended or was pruned: each has an index
   (`schema`), and what may be long has a limit.
3. A damaged value does not affect the others of its row: `damage` names it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints

import msgspec

from governor.journal.run_filter import EVERY_RUN, RunFilter
from governor.journal.schema import ENDED, KEPT, LARGEST, PRUNED, UNENDED
from governor.messages import RunOutcome  # noqa: TC001  # of the columns' types, which are read

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FOUND: Final = 5
"""Uids that `find` returns at most."""
LAST: Final = chr(0x10FFFF)
"""No character is behind this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A run as recorded in the journal, without its documents. Times are wall-clock seconds; `parent` is the run that it
    resumes. `digest` is that of the run file, None in older journals; of a pruned run only this line is left. `phases` is
    their number, None where it can't be read; `metrics` are those of the last phase that has some, `seconds` the time in
    work, both once it has ended. `group_uid`, `cell`, `params`: of a run of a group, with its values of the matrix. `damage`: the columns that can't be read, whose values are empty here. A run whose uid
    can't be read has its `position` in the table as uid, as ``#7``.
    """

    uid: str
    key: str | None
    name: str
    folder: str
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    outcome: RunOutcome | None
    reason: str
    parent: str | None = None
    digest: bytes | None = None
    pruned_at: float | None = None
    phases: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float | None = None
    group_uid: str | None = None
    cell: int | None = None
    params: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    position: int = 0
    damage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow(RunLine):
    """With the run file as submitted, `spec`."""

    spec: dict[str, Any]

    def columns(self) -> dict[str, Any]:
        """The values as they are written to the table."""
        values = {name: getattr(self, name) for name in _columns(RunRow)}
        return values | {name: msgspec.msgpack.encode(values[name]) for name in _PACKED}


L = TypeVar("L", bound=RunLine)
_PACKED: Final = ("metrics", "spec", "params", "labels")
_UNREADABLE: Final = (msgspec.MsgspecError, TypeError, ValueError)
_NOTHING: Final[dict[str, Any]] = {
    "name": "?",
    "spec": {},
    "metrics": {},
    "params": {},
    "labels": {},
    "folder": "",
    "submitted_at": 0.0,
    "reason": "",
}
"""For required values that can't be read."""


def _columns(kind: type[RunLine]) -> dict[str, Any]:
    """The columns and their types, in the order in which they are selected."""
    return {name: type_ for name, type_ in get_type_hints(kind).items() if name not in ("position", "damage")}


_COLUMNS: Final = {kind: _columns(kind) for kind in (RunLine, RunRow)}


def read_row(kind: type[L], row: tuple[Any, ...]) -> L:
    """Reads a row of `SELECT` of this kind."""
    *values, position = row
    columns = _COLUMNS[kind]
    stored = dict(zip(columns, values, strict=True))
    with suppress(*_UNREADABLE):
        whole = {name: _unpacked(name, value) for name, value in stored.items()}
        return msgspec.convert({**whole, "position": position}, kind)
    found, damage = {}, []
    for name, type_ in columns.items():
        try:
            found[name] = msgspec.convert(_unpacked(name, stored[name]), type_)
        except _UNREADABLE as error:
            damage.append(f"runs.{name}: {error}")
            found[name] = _NOTHING.get(name)
    found["uid"] = found["uid"] or f"#{position}"
    return kind(**found, position=position, damage="; ".join(damage))


def _unpacked(name: str, value: Any) -> Any:
    if name not in _PACKED:
        return value
    return {} if name != "spec" and value is None else msgspec.msgpack.decode(value)


SELECT: Final = {
    kind: f"SELECT {', '.join(columns)}, position FROM runs"  # noqa: S608  # our own
    for kind, columns in _COLUMNS.items()
}


_LISTED: Final = f"{', '.join(_COLUMNS[RunLine])}, position"


def position_of(uid: str) -> int | None:
    """The position of a run whose uid can't be read (``#7``), else None."""
    number = uid.removeprefix("#")
    return int(number) if number != uid and number.isdecimal() and len(number) < len(str(LARGEST)) else None


class RunsTable(ABC):
    """The questions about the runs. Each blocks; raises JournalError."""

    reserved: set[str]
    """Runs that have a row, and may be accepted next (`inheritance`)."""

    @abstractmethod
    def _rows(self, question: str, parameters: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of an answer."""

    def _value(self, question: str, *parameters: Any) -> Any:
        """The only column of the first row; None where there is no row."""
        return next((value for (value,) in self._rows(question, parameters)), None)

    def _select(self, kind: type[L], condition: str, *parameters: Any) -> list[L]:
        rows = self._rows(f"{SELECT[kind]} WHERE {condition}", parameters)
        return [read_row(kind, row) for row in rows]

    def run(self, uid: str) -> RunRow | None:
        rows = self._select(RunRow, "uid = ? OR position = ?", uid, position_of(uid))
        return next((row for row in rows if row.uid == uid), None)

    def line(self, uid: str) -> RunLine | None:
        rows = self._select(RunLine, "uid = ? OR position = ?", uid, position_of(uid))
        return next((row for row in rows if row.uid == uid), None)

    def lines(self, uids: Sequence[str]) -> list[RunLine]:
        """Those of these runs that are on record."""
        return self._select(RunLine, f"uid IN ({', '.join('?' * len(uids))})", *uids)

    def of_key(self, key: str) -> str | None:
        """The uid of the run that was submitted with this key."""
        uid = self._value("SELECT uid FROM runs WHERE key = ?", key)
        return None if uid is None else str(uid)

    def find(self, prefix: str) -> list[str]:
        """Uids that begin with `prefix`, five at most; without pruned runs."""
        rows = self._rows(
            f"SELECT uid FROM runs WHERE uid >= ? AND uid < ? AND {KEPT} LIMIT {FOUND}",  # noqa: S608  # our own
            (prefix, prefix + LAST),
        )
        found = [uid for (uid,) in rows]
        return [prefix] if not found and position_of(prefix) and self.line(prefix) else found

    def runs(self, *, limit: int, after: int | None = None, only: RunFilter = EVERY_RUN) -> list[RunLine]:
        """The newest runs of the filter, newest first; those behind the one at the position `after`, if given."""
        question, parameters = only.question(before=LARGEST - 1 if after is None else after)
        rows = self._rows(f"SELECT {_LISTED} FROM {question} LIMIT ?", (*parameters, limit))  # noqa: S608  # our own
        return [read_row(RunLine, row) for row in rows]

    def lines_of_group(self, uid: str) -> Iterator[RunLine]:
        """The runs of a group, in the order of their submission."""
        rows = self._rows(f"{SELECT[RunLine]} WHERE {KEPT} AND group_uid = ? ORDER BY position", (uid,))
        return (read_row(RunLine, row) for row in rows)

    def unended(self) -> Iterator[RunRow]:
        """Runs without an end on record, in the order of their submission."""
        rows = self._rows(f"{SELECT[RunRow]} WHERE {UNENDED} ORDER BY position")
        return (read_row(RunRow, row) for row in rows)

    def first_unended(self, limit: int) -> list[RunLine]:
        """As `unended`, the first ones of them."""
        return self._select(RunLine, f"{UNENDED} ORDER BY position LIMIT ?", limit)

    def ended(self, *, behind: int = 0, before: float = float("inf")) -> list[str]:
        """Uids of runs that ended before this time, oldest first; without the newest `behind` of all that have ended."""
        conditions = f"{ENDED} AND {KEPT} AND typeof(uid) = 'text'"
        newest = (
            f"SELECT ended_at, position FROM runs WHERE {conditions}"  # noqa: S608  # our own
            " ORDER BY ended_at DESC, position DESC LIMIT 1 OFFSET ?"
        )
        last = next(self._rows(newest, (behind,)), None)
        if last is None:
            return []
        rows = self._rows(
            f"SELECT uid FROM runs WHERE {conditions}"  # noqa: S608  # our own
            " AND ended_at < ? AND (ended_at, position) <= (?, ?) ORDER BY ended_at, position",
            (before, *last),
        )
        return [uid for (uid,) in rows]

    def pruned(self, prefix: str) -> RunLine | None:
        """A pruned run, by the beginning of its uid."""
        found = self._select(RunLine, f"uid >= ? AND uid < ? AND {PRUNED} LIMIT 1", prefix, prefix + LAST)
        return next(iter(found), None)

    def marked(self) -> list[str]:
        """Runs that are pruned, and not yet removed."""
        question = f"SELECT uid FROM runs WHERE {PRUNED} AND removed = 0"  # noqa: S608  # our own
        found = [uid for (uid,) in self._rows(question) if uid not in self.reserved]
        # One that was reserved may have been accepted since the answer.
        still = {uid for (uid,) in self._rows(question)} if found else set()
        return [uid for uid in found if uid in still]
