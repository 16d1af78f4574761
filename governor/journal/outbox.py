"""The outbox of hooks: what has to be told, on record with the event that it tells of, until it is delivered.

Rules:
1. A delivery is inserted in the transaction of its event, whoever records that: none is lost, and none is told of what is not on record.
2. It has all that is told, the `document`: its run may be pruned meanwhile. Its key is that of the event and the hook: a try that is made
   again has the same.
3. A delivered one is removed. One that was given up stays with its error, until its run is pruned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor import clock

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping, Sequence

TABLES: Final = """
CREATE TABLE deliveries (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    run INTEGER NOT NULL REFERENCES runs (position),
    hook BLOB NOT NULL,
    folder TEXT NOT NULL,
    document BLOB NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    due_at REAL,
    error TEXT NOT NULL DEFAULT ''
);
CREATE INDEX due_deliveries ON deliveries (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX deliveries_of_run ON deliveries (run);
"""
"""`hook` is a `units.hooks.Hook`, `document` what is told, both in msgpack. `due_at`: wall-clock second of the next try, NULL for none."""
REMOVE: Final = "DELETE FROM deliveries WHERE run = ?1 AND due_at IS NULL AND ?2"
"""Those of a pruned run that were given up."""
_SELECT: Final = "SELECT deliveries.position, uid, hook, deliveries.folder, document, tries, due_at, deliveries.error FROM deliveries JOIN runs ON run = runs.position"


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """`hook` is plain data of a `units.hooks.Hook`. `tries` were made, the last one ended with `error`."""

    position: int
    uid: str
    hook: dict[str, Any]
    folder: str
    document: dict[str, Any]
    tries: int
    due_at: float | None
    error: str


class _Spec(msgspec.Struct):
    name: str = ""
    hooks: dict[str, Any] | None = None


_spec = msgspec.msgpack.Decoder(_Spec)


def hook_of(kind: str, data: Mapping[str, Any]) -> str | None:
    """The name of the hooks that an event is for."""
    match kind:
        case "run.ended":
            return "on_end"
        case "run.stalled":
            return "on_stall"
        case "limit.exceeded":
            return "on_limit"
        case "deadline.passed" if data.get("name") == "wall_clock":
            return "on_limit"
        case "conductor.exited" if not data.get("expected", True):
            return "on_restart"
    return None


def note(
    connection: sqlite3.Connection,
    run: int,
    event: tuple[str, int, Mapping[str, Any]],
    everybody: Mapping[str, Any],
) -> bool:
    """Inserts what an `event` (kind, number, data) has to tell, to the run's hooks and those for `everybody`, by name. Whether there is any."""
    kind, seq, data = event
    if (name := hook_of(kind, data)) is None:
        return False
    row = connection.execute(
        "SELECT uid, name, spec, folder, outcome, reason, metrics, seconds, group_uid, params, labels FROM runs WHERE position = ?",
        (run,),
    ).fetchone()
    uid, run_name, spec, folder, outcome, reason, metrics, seconds, group, params, labels = row
    try:
        own = (_spec.decode(spec).hooks or {}).get(name)
    except (msgspec.MsgspecError, TypeError):  # damaged: nobody knows
        own = None
    hooks = [(whose, hook) for whose, hook in (("run", own), ("daemon", everybody.get(name))) if hook]
    at = clock.wall()
    for whose, hook in hooks:
        document = {
            "key": f"{uid}-{seq}-{whose}",
            "hook": name,
            "run": uid,
            "name": run_name,
            "at": at,
            "event": kind,
            "number": seq,
            "data": dict(data),
            "group": group,
            "params": _plain(params),
            "labels": _plain(labels),
        }
        if kind == "run.ended":
            ended = {"outcome": outcome or data.get("outcome"), "reason": reason or data.get("reason", "")}
            document |= {**ended, "seconds": seconds, "metrics": _plain(metrics)}
        connection.execute(
            "INSERT INTO deliveries (run, hook, folder, document, due_at) VALUES (?, ?, ?, ?, ?)",
            (run, msgspec.msgpack.encode(hook), folder, msgspec.msgpack.encode(document), at),
        )
    return bool(hooks)


def _plain(packed: Any) -> dict[str, Any]:
    try:
        return {} if packed is None else msgspec.msgpack.decode(packed, type=dict[str, Any])
    except (msgspec.MsgspecError, TypeError):
        return {}


class OutboxChanges:
    """The part of a transaction that is for deliveries."""

    _connection: sqlite3.Connection

    def delivered(self, position: int) -> None:
        self._connection.execute("DELETE FROM deliveries WHERE position = ?", (position,))

    def not_delivered(self, position: int, *, error: str, due_at: float | None) -> None:
        """A try has failed; without `due_at` it was the last one."""
        self._connection.execute(
            "UPDATE deliveries SET tries = tries + 1, error = ?, due_at = ? WHERE position = ?",
            (error, due_at, position),
        )


class OutboxRecords(ABC):
    """The questions about deliveries. Each blocks; raises JournalError."""

    @abstractmethod
    def _rows(self, question: str, parameters: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of an answer."""

    def due_deliveries(self, limit: int, *, besides: Sequence[int] = ()) -> list[Delivery]:
        """Those that are to be tried next, whether or not their time has come."""
        others = ", ".join("?" * len(besides))
        question = f"{_SELECT} WHERE due_at IS NOT NULL AND deliveries.position NOT IN ({others}) ORDER BY due_at LIMIT ?"
        return [found for row in self._rows(question, (*besides, limit)) if (found := _read(row)) is not None]

    def undelivered(self, uid: str) -> list[Delivery]:
        """Those of a run that have failed: they are tried again, or were given up and have no time."""
        question = f"{_SELECT} WHERE uid = ? AND tries > 0 ORDER BY deliveries.position"
        return [found for row in self._rows(question, (uid,)) if (found := _read(row)) is not None]


def _read(row: tuple[Any, ...]) -> Delivery | None:
    """A row of `_SELECT`; None for a damaged one."""
    position, uid, hook, folder, document, tries, due_at, error = row
    try:
        return Delivery(
            position=position,
            uid=uid,
            hook=msgspec.msgpack.decode(hook, type=dict[str, Any]),
            folder=folder,
            document=msgspec.msgpack.decode(document, type=dict[str, Any]),
            tries=tries,
            due_at=due_at,
            error=error,
        )
    except (msgspec.MsgspecError, TypeError):
        return None
