"""The journal: what has happened, durable before anybody is told of it. SQLite in WAL, one writer.

Rules:
1. All writing goes through one thread. What has gathered there while it was busy is committed together (group
   commit): one fsync for many acknowledgements.
2. `write` returns when the commit is durable. A change that fails is rolled back alone and raises for its own caller.
3. Events of a run are numbered from 1 without gaps, in the transaction that records them.
4. Reading happens on a connection of its own, in the caller's thread; it sees what is committed.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from governor.errors import JournalError
from governor.journal_tables import (
    EVENTS_OF_RUN,
    MIGRATIONS,
    RECORDS_OF_PHASE,
    SCHEMA,
    SCHEMA_VERSION,
    RunRow,
    Transaction,
    array_of_one,
    read_events,
    read_row,
)
from governor.messages import EpisodeRecord, RunEvent, RunResult, TaskRecord

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
GROUP: Final = 512
"""Changes in one commit, at most."""
PAGE: Final = 500
"""Events read at once."""

_Change = tuple[Callable[[Transaction], Any], "asyncio.Future[Any]"]


class Journal:
    """Belongs to one event loop. `open` it, `close` it when no writer is left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loop = asyncio.get_running_loop()
        self._changes: queue.SimpleQueue[_Change | None] = queue.SimpleQueue()
        self._followers: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        try:
            self._writing = self._connect()
            self._prepare(self._writing)
            self._reading = self._connect()
        except sqlite3.Error as error:
            raise JournalError(f"the journal {path} cannot be opened: {error}") from error
        self._thread = threading.Thread(target=self._write_all, name="journal.writer", daemon=True)
        self._thread.start()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA busy_timeout=5000")
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise JournalError(
                f"the journal {self.path} is of schema {version}, this governor knows up to {SCHEMA_VERSION}: "
                "use the newer governor that wrote it"
            )
        if version < SCHEMA_VERSION:
            connection.create_function("packed", 1, array_of_one, deterministic=True)
            steps = [MIGRATIONS[step] for step in range(version, SCHEMA_VERSION)] if version else [SCHEMA]
            connection.executescript(f"BEGIN; {''.join(steps)} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")

    async def close(self) -> None:
        """Commits what was handed in and gives the files back."""
        self._changes.put(None)
        await asyncio.to_thread(self._thread.join)
        self._writing.close()
        self._reading.close()

    # -- writing ---------------------------------------------------------------------------------------------

    async def write(self, change: Callable[[Transaction], T]) -> T:
        """Runs `change` in the writer's thread and returns its result once that is durable.

        Raises JournalError when the disk would not take it; nothing of the change is recorded then.
        """
        done: asyncio.Future[T] = self._loop.create_future()
        self._changes.put((change, done))
        return await asyncio.shield(done)

    def _write_all(self) -> None:
        while (first := self._changes.get()) is not None:
            group = [first]
            last = False
            while len(group) < GROUP and not self._changes.empty():
                following = self._changes.get()
                if following is None:
                    last = True
                    break
                group.append(following)
            self._commit(group)
            if last:
                return

    def _commit(self, group: list[_Change]) -> None:
        transaction = Transaction(self._writing)
        results: list[tuple[asyncio.Future[Any], Any, Exception | None]] = []
        try:
            self._writing.execute("BEGIN IMMEDIATE")
            for change, done in group:
                results.append((done, *self._apply(change, transaction)))
            self._writing.execute("COMMIT")
        except sqlite3.Error as error:
            if self._writing.in_transaction:
                self._writing.execute("ROLLBACK")
            failure = JournalError(f"the journal {self.path} cannot be written: {error}")
            results = [(done, None, failure) for _, done in group]
            transaction = Transaction(self._writing)
        self._loop.call_soon_threadsafe(self._announce, results, transaction.touched)

    def _apply(
        self, change: Callable[[Transaction], Any], transaction: Transaction
    ) -> tuple[Any, Exception | None]:
        self._writing.execute("SAVEPOINT change")
        try:
            result = change(transaction)
        except sqlite3.OperationalError:
            raise  # the disk, not this change: the whole group fails
        except Exception as error:  # noqa: BLE001  # handed to the caller of this change, whatever it is
            self._writing.execute("ROLLBACK TO change")
            transaction.rolled_back()
            return None, error
        finally:
            if self._writing.in_transaction:
                self._writing.execute("RELEASE change")
        return result, None

    def _announce(
        self, results: list[tuple[asyncio.Future[Any], Any, Exception | None]], touched: set[str]
    ) -> None:
        for done, result, error in results:
            if done.cancelled():
                continue
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)
        for uid in touched:
            for arrived in self._followers.get(uid, ()):
                arrived.set()

    # -- reading ---------------------------------------------------------------------------------------------

    def run(self, uid: str) -> RunRow | None:
        row = self._reading.execute(f"{RunRow.SELECT} WHERE uid = ?", (uid,)).fetchone()
        return read_row(row) if row else None

    def of_key(self, key: str) -> str | None:
        """The uid of the run that was submitted with this key."""
        row = self._reading.execute("SELECT uid FROM runs WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else None

    def find(self, prefix: str) -> list[str]:
        """Uids that begin with `prefix`, five at most."""
        rows = self._reading.execute(
            "SELECT uid FROM runs WHERE substr(uid, 1, ?) = ? LIMIT 5", (len(prefix), prefix)
        )
        return [uid for (uid,) in rows]

    def runs(self, *, limit: int) -> list[RunRow]:
        """The newest runs, newest first."""
        rows = self._reading.execute(f"{RunRow.SELECT} ORDER BY position DESC LIMIT ?", (limit,))
        return [read_row(row) for row in rows]

    def unended(self) -> list[RunRow]:
        """Runs without an outcome, in the order of their submission."""
        rows = self._reading.execute(f"{RunRow.SELECT} WHERE ended_at IS NULL ORDER BY position")
        return [read_row(row) for row in rows]

    def result(self, uid: str) -> RunResult | None:
        row = self._reading.execute("SELECT result FROM runs WHERE uid = ?", (uid,)).fetchone()
        return msgspec.msgpack.decode(row[0], type=RunResult) if row and row[0] else None

    def events(self, uid: str, *, after: int = 0, limit: int = PAGE) -> list[RunEvent]:
        """The events that follow number `after`: `limit` of them, and the others that were recorded together with the
        last one.
        """
        rows = self._reading.execute(f"{EVENTS_OF_RUN} AND last > ? ORDER BY last", (uid, after))
        found: list[RunEvent] = []
        for row in rows:
            found += [event for event in read_events(row) if event.seq > after]
            if len(found) >= limit:
                break
        return found

    def latest(self, uid: str) -> RunEvent | None:
        """The last event on record."""
        row = self._reading.execute(f"{EVENTS_OF_RUN} ORDER BY last DESC LIMIT 1", (uid,)).fetchone()
        return read_events(row)[-1] if row else None

    def events_of(self, uid: str, kinds: tuple[str, ...]) -> list[RunEvent]:
        """The events of these kinds, in their order."""
        marks = ", ".join("?" * len(kinds))
        rows = self._reading.execute(
            f"{EVENTS_OF_RUN} AND events.kind IN ({marks}) ORDER BY last", (uid, *kinds)
        )
        return [event for row in rows for event in read_events(row)]

    def standing_events_of(self, uid: str, kinds: tuple[str, ...]) -> list[RunEvent]:
        """As `events_of`, without what was before the run began anew: that was discarded."""
        begun = self._last_of(uid, ("run.restarted",))
        return [event for event in self.events_of(uid, kinds) if event.seq > begun]

    def last_record(self, uid: str) -> int:
        """The number of the last event that tells of an ended episode or task; 0 where there is none."""
        return self._last_of(uid, ("episode.ended", "task.ended"))

    def _last_of(self, uid: str, kinds: tuple[str, ...]) -> int:
        marks = ", ".join("?" * len(kinds))
        (last,) = self._reading.execute(
            f"SELECT max(last) FROM runs JOIN events ON run = position WHERE uid = ? AND kind IN ({marks})",  # noqa: S608
            (uid, *kinds),
        ).fetchone()
        return last or 0

    def episodes(self, uid: str, phase: int) -> list[EpisodeRecord]:
        """The ended episodes of a phase, in the order in which they ended."""
        rows = self._reading.execute(RECORDS_OF_PHASE, (uid, "episode", phase))
        return [
            record for (data,) in rows for record in msgspec.msgpack.decode(data, type=list[EpisodeRecord])
        ]

    def tasks(self, uid: str, phase: int) -> list[TaskRecord]:
        """The ended runs of tasks of a phase, in the order in which they ended."""
        rows = self._reading.execute(RECORDS_OF_PHASE, (uid, "task", phase))
        return [record for (data,) in rows for record in msgspec.msgpack.decode(data, type=list[TaskRecord])]

    @contextmanager
    def arrivals(self, uid: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever the run has new events on record, and by `wake_followers`."""
        arrived = asyncio.Event()
        self._followers[uid].add(arrived)
        try:
            yield arrived
        finally:
            self._followers[uid].discard(arrived)
            if not self._followers[uid]:
                del self._followers[uid]

    def wake_followers(self) -> None:
        """So that whoever follows a run looks up: the daemon goes down."""
        for followers in self._followers.values():
            for arrived in followers:
                arrived.set()
