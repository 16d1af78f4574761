"""Failures of user code on record: how often each cause, one traceback of each kind, and which events tell of failures.

Rules:
1. A cause is counted in the transaction that records its failures, so the counts are those of the record after any crash.
2. Equal tracebacks are one row of a run, and a record has its digest. A run keeps `MOST` of them, and beyond that the first
   one of a cause, `MOST` more. A digest without a row: that traceback was not kept.
3. Causes beyond `MOST` of a phase are counted together, as `OTHERS`.
4. A row of `events` says how many of its events are failures: who lists them reads these rows alone.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from governor.errors import RecordDamaged
from governor.failures import cause_of
from governor.messages import BAD, BAD_TASKS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping, Sequence

    from governor.journal.record_check import Rows

MOST: Final = 1_000
OTHERS: Final = b""
"""The cause of failures whose own cause is not counted."""
TABLES: Final = """
CREATE TABLE tracebacks (
    run INTEGER NOT NULL, digest TEXT NOT NULL, text TEXT NOT NULL,
    PRIMARY KEY (run, digest)
) WITHOUT ROWID;
CREATE TABLE causes (
    run INTEGER NOT NULL, phase INTEGER NOT NULL, kind TEXT NOT NULL, cause BLOB NOT NULL,
    number INTEGER NOT NULL, event INTEGER NOT NULL, first BLOB NOT NULL,
    PRIMARY KEY (run, phase, kind, cause)
) WITHOUT ROWID;
"""
"""`causes`: the `number` of failures of each cause, the number of the first one's event, and its record in msgpack."""
INDEX: Final = "CREATE INDEX failed_events ON events (run, last) WHERE failures > 0;"
COUNTED: Final = {
    "episode.ended": "episode",
    "task.ended": "task",
    "episode.attempt_ended": "attempt",
    "task.attempt_ended": "attempt",
}
"""Events whose causes are counted, and what is then said to have failed."""
INHERITED: Final = "failure.inherited"
"""An event of a failure in a phase that the run has whole from the one that it resumes: `item` is its record or data, `kind` that of
its event, which was recorded `at` this second.
"""
TEXT: Final = 1 << 17
"""Characters of a traceback that are stored at most, whoever sends it."""


class Cause(NamedTuple):
    """`number` failures of a phase with the same cause. `kind`: ``episode``, ``task`` or ``attempt``; `first`: its record, or the
    data of its `event`. `others`: failures of causes that are not counted.
    """

    kind: str
    number: int
    event: int
    first: dict[str, Any]
    others: bool


KINDS: Final = (
    "episode.ended",
    "task.ended",
    "episode.attempt_ended",
    "task.attempt_ended",
    "part.ended",
    "conductor.failed",
    "conductor.exited",
)
"""Of events that may be failures, before a run had those of another."""


FAILED: Final = " AND events.failures > 0 AND last > ? AND (records.phase IS NULL OR ? IS NULL OR records.phase = ?) ORDER BY last"
"""Of the rows of `tables.EVENTS_OF_RUN`."""
_CAUSES: Final = (
    "SELECT kind, cause, number, event, first FROM runs JOIN causes ON run = position"
    " WHERE uid = ? AND phase = ? ORDER BY event"
)


def causes(rows: Rows, uid: str, phase: int) -> list[Cause]:
    """The causes of a phase's failures, in the order of the first one of each. Raises RecordDamaged."""
    place = f"causes of phase {phase}"
    try:
        return [
            Cause(
                kind,
                number,
                event,
                msgspec.msgpack.decode(first, type=dict[str, Any]),
                others=cause == OTHERS,
            )
            for kind, cause, number, event, first in rows(_CAUSES, (uid, phase))
        ]
    except (msgspec.MsgspecError, TypeError) as error:
        raise RecordDamaged(uid, place, str(error)) from error


def failed(kind: str, items: Sequence[Any]) -> list[int]:
    """Which of these events of one kind are failures, by their places; `items` are their records, else their data."""
    match kind:
        case "episode.ended" | "task.ended":
            bad = BAD if kind == "episode.ended" else BAD_TASKS
            return [place for place, item in enumerate(items) if _of(item, "outcome") in bad]
        case "episode.attempt_ended" | "task.attempt_ended" | "conductor.failed" | "failure.inherited":
            return [*range(len(items))]
        case "part.ended":
            return [place for place, item in enumerate(items) if item.get("fault")]
        case "conductor.exited":
            return [place for place, item in enumerate(items) if _is_unexpected(item)]
        case _:
            return []


def _of(item: Any, name: str) -> Any:
    return item.get(name, "") if isinstance(item, dict) else getattr(item, name)


def _is_unexpected(exited: Mapping[str, Any]) -> bool:
    """Whether its process has exited by itself, without having told of an error."""
    return not exited.get("expected") and exited.get("exit_code") not in (0, 1, None)


class Deaths:
    """Finds the deaths of conductors in their events: of one that told of its error before it exited, the error."""

    def __init__(self) -> None:
        self._found: set[tuple[Any, Any]] = set()

    def is_one(self, kind: str, data: Mapping[str, Any]) -> bool:
        """Of each event, in their order."""
        who = data.get("conductor"), data.get("incarnation")
        if not failed(kind, [data]) or who in self._found:
            return False
        self._found.add(who)
        return True


def failures_packed(kind: Any, packed: Any) -> int:
    """How many of the events in a row are failures, for the migration: of data that can't be read, none."""
    try:
        return len(failed(kind, msgspec.msgpack.decode(packed, type=list[dict[str, Any]])))
    except (msgspec.MsgspecError, TypeError, ValueError):
        return 0


def keep_traceback(connection: sqlite3.Connection, run: int, digest: str, text: str, *, first: bool) -> None:
    """Stores a traceback, if the run keeps it. `first`: that of a cause."""
    (known,) = connection.execute("SELECT count(*) FROM tracebacks WHERE run = ?", (run,)).fetchone()
    if known < (2 * MOST if first else MOST):
        connection.execute(
            "INSERT OR IGNORE INTO tracebacks (run, digest, text) VALUES (?, ?, ?)",
            (run, digest, text[:TEXT]),
        )


def count_causes(
    connection: sqlite3.Connection, run: int, kind: str, items: Iterable[tuple[int, Any]], *, phase: int
) -> None:
    """Counts failures of one kind of events, by their numbers, if they are of a phase."""
    if kind == INHERITED:
        for (of, place), some in groupby(items, lambda each: (each[1]["kind"], each[1]["phase"])):
            count_causes(connection, run, of, [(event, each["item"]) for event, each in some], phase=place)
    if kind not in COUNTED:
        return
    counts: dict[bytes, int] = {}
    first: dict[bytes, tuple[int, Any]] = {}
    for event, item in items:
        phase = item["phase"] if phase < 0 else phase
        reason = _of(item, "reason" if kind.startswith("episode.") else "error")
        cause = blake2b(f"{_of(item, 'outcome')} {cause_of(reason)}".encode(), digest_size=8).digest()
        counts[cause] = counts.get(cause, 0) + 1
        first.setdefault(cause, (event, item))
    place = (run, phase, COUNTED[kind])
    for cause, number in counts.items():
        if _add(connection, place, cause, number):
            continue
        (known,) = connection.execute(
            "SELECT count(*) FROM causes WHERE run = ? AND phase = ? AND kind = ?", place
        ).fetchone()
        if known >= MOST and _add(connection, place, OTHERS, number):
            continue
        event, item = first[cause]
        connection.execute(
            "INSERT INTO causes (run, phase, kind, cause, number, event, first) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*place, cause if known < MOST else OTHERS, number, event, msgspec.msgpack.encode(item)),
        )


def _add(connection: sqlite3.Connection, place: tuple[int, int, str], cause: bytes, number: int) -> bool:
    """Whether the cause is counted already."""
    changed = connection.execute(
        "UPDATE causes SET number = number + ? WHERE run = ? AND phase = ? AND kind = ? AND cause = ?",
        (number, *place, cause),
    ).rowcount
    return changed > 0
