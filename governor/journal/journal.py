"""The journal: changes are durable before they are acknowledged. SQLite in WAL mode, one writer.

Rules:
1. All writing goes through one thread. It commits all changes that have queued up together (group commit): one fsync for
   many acknowledgements.
2. `write` returns when the commit is durable. A change that fails is rolled back alone and raises for its own caller.
3. Events of a run are numbered from 1 without gaps, in the transaction that records them.
4. Reading happens in the caller's thread, on a connection of that thread: it sees what is committed, whatever another
   thread is reading. What may take longer than one row is read with `read`, not in the event loop.
5. Every error of SQLite becomes a JournalError. On a full disk the reserve is given up, and the changes are made again: they
   may be called twice. After a change of a run was lost, no other change of that run is accepted: a record has no hole.
6. A damaged value raises RecordDamaged for its run.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

from governor import logs
from governor.errors import JournalError, text_of
from governor.journal import schema
from governor.journal.disk_reserve import is_full
from governor.journal.readers import Readers
from governor.journal.run_records import RunRecords
from governor.journal.tables import (
    Transaction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from governor.journal.disk_reserve import Reserve

T = TypeVar("T")
GROUP: Final = 512
"""Changes in one commit, at most."""
PAGE: Final = 500
"""Events read at once."""
_ERRORS_OF_ONE_CHANGE: Final = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
)
"""Errors that fail one change; all other errors of SQLite come from the disk, and fail the whole group."""


log = logs.get_logger()


@dataclass(slots=True)
class _Change:
    make: Callable[[Transaction], Any]
    done: asyncio.Future[Any]
    run: str | None
    result: Any = None
    failure: Exception | None = None


class Journal(RunRecords):
    """Use it in one event loop. `close` it when no writer is left.

    `reserve` is given up when the disk is full; `on_unreadable` is called in the loop with each error of a read.
    """

    def __init__(
        self,
        path: Path,
        *,
        reserve: Reserve | None = None,
        on_unreadable: Callable[[JournalError], None] = lambda _: None,
    ) -> None:
        self.path = path
        self.hooks: Mapping[str, Any] = {}
        """Those of all runs, by name, as plain data."""
        self.due = asyncio.Event()
        """Set when there may be another delivery."""
        self._reserve = reserve
        self._on_unreadable = on_unreadable
        self._loop = asyncio.get_running_loop()
        self._changes: queue.SimpleQueue[_Change | None] = queue.SimpleQueue()
        self._followers: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._cut_off: set[str | None] = set()
        """The runs that have lost a change. None, of changes of no run, does not count."""
        self.reserved: set[str] = set()
        self._over: str | None = None
        try:
            self._writing = schema.connect(path)
            schema.prepare(self._writing, path)
            self._readers = Readers(path)
        except sqlite3.Error as error:
            raise schema.failure(path, "opened", error) from error
        self._thread = threading.Thread(target=self._write_all, name="journal.writer", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Commits the pending changes and closes the files."""
        self._changes.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._readers.close)
        self._writing.close()  # the last connection moves the log into the file

    def make_room(self, error: BaseException, *, tried: int = 0) -> bool:
        """Makes room if `error` means a full disk, as `Reserve.make_room`: the failed operation may then succeed."""
        return is_full(error) and self._reserve is not None and self._reserve.make_room(error, tried=tried)

    @property
    def is_out_of_room(self) -> bool:
        """Whether the disk is full, or was, so that the daemon goes down."""
        return self._reserve is not None and self._reserve.is_needed()

    # -- writing ---------------------------------------------------------------------------------------------

    async def write(self, change: Callable[[Transaction], T], *, run: str | None = None) -> T:
        """Runs `change` in the writer's thread and returns its result once that is durable.

        Raises JournalError when it could not be written: then nothing of the change is recorded, and no later change of the
        same `run`, if given; that run must be interrupted, and is continued in the next invocation.
        """
        done: asyncio.Future[T] = self._loop.create_future()
        self._changes.put(_Change(change, done, run))
        if self._over is not None:
            self._refuse_all(self._over)
        return await asyncio.shield(done)

    def _write_all(self) -> None:
        group: list[_Change] = []
        why = "it is closed"
        try:
            is_last = False
            while not is_last:
                group, is_last = self._gather()
                if group:
                    self._commit(group)
                group = []
        except BaseException as error:
            why = f"its writer failed: {type(error).__name__}: {text_of(error)}"
            log.exception("journal.writer_failed", reason=why)
        finally:
            self._over = why  # `write` reads it after it has queued its change, so none is left waiting
            for change in group:
                self._changes.put(change)
            self._refuse_all(why)

    def _gather(self) -> tuple[list[_Change], bool]:
        """Takes the queued changes; and whether the journal was closed behind them."""
        group: list[_Change] = []
        while len(group) < GROUP and (not group or not self._changes.empty()):
            change = self._changes.get()
            if change is None:
                return group, True
            group.append(change)
        return group, False

    def _refuse_all(self, why: str) -> None:
        refused: list[_Change] = []
        with suppress(queue.Empty):
            while True:
                change = self._changes.get_nowait()
                if change is not None:
                    change.failure = JournalError(f"the journal {self.path} takes nothing: {why}")
                    refused.append(change)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._announce, refused, set())

    def _commit(self, group: list[_Change]) -> None:
        touched: set[str] = set()
        try:
            for tried in count():
                try:
                    touched = self._transact(group)
                    break
                except sqlite3.Error as error:
                    if not self.make_room(error, tried=tried):
                        raise
        except sqlite3.Error as error:
            failure = schema.failure(self.path, "written", error)
            for change in group:
                change.failure = failure
                self._cut_off.add(change.run)
        self._loop.call_soon_threadsafe(self._announce, group, touched)

    def _transact(self, group: list[_Change]) -> set[str]:
        """Returns the runs that have new events. After sqlite3.Error nothing of the group is recorded."""
        transaction = Transaction(self._writing, self.hooks)
        try:
            self._writing.execute("BEGIN IMMEDIATE")
            for change in group:
                self._apply(change, transaction)
            self._writing.execute("COMMIT")
        except sqlite3.Error:
            schema.roll_back(self._writing)
            raise
        if transaction.has_due:
            self._loop.call_soon_threadsafe(self.due.set)
        return transaction.touched

    def _apply(self, change: _Change, transaction: Transaction) -> None:
        change.failure = None
        if change.run is not None and change.run in self._cut_off:
            reason = f"run {change.run} has lost a change: nothing more of it is recorded"
            change.failure = JournalError(reason)
            return
        self._writing.execute("SAVEPOINT change")
        try:
            change.result = change.make(transaction)
        except _ERRORS_OF_ONE_CHANGE as error:
            change.failure = schema.failure(self.path, "written", error)
            self._cut_off.add(change.run)
        except sqlite3.Error:
            raise  # the disk, not this change: the whole group fails
        except Exception as error:  # noqa: BLE001  # handed to the caller of this change, whatever it is
            change.failure = error
        if change.failure is not None:
            self._writing.execute("ROLLBACK TO change")
            transaction.rolled_back()
        self._writing.execute("RELEASE change")

    def _announce(self, group: list[_Change], touched: set[str]) -> None:
        for change in group:
            if change.done.cancelled():
                continue
            if change.failure is None:
                change.done.set_result(change.result)
            else:
                change.done.set_exception(change.failure)
        for uid in touched:
            for arrived in self._followers.get(uid, ()):
                arrived.set()

    # -- reading ---------------------------------------------------------------------------------------------

    async def read(self, question: Callable[[], T]) -> T:
        """What `question` returns; it is asked in one of the journal's threads, and reads from the journal there."""
        return await self._loop.run_in_executor(self._readers.threads, question)

    def _rows(self, question: str, parameters: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._readers.rows(question, parameters)
        except sqlite3.Error as error:
            failure = schema.failure(self.path, "read", error)
            if not self._readers.closing:
                self._loop.call_soon_threadsafe(self._on_unreadable, failure)
            raise failure from error

    def checkpoint(self) -> None:
        """Moves the write-ahead log into the file, which becomes as small as possible. Blocks."""
        next(self._rows("PRAGMA wal_checkpoint(PASSIVE)"))

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
        """Wakes all followers of runs, when the daemon goes down."""
        for followers in self._followers.values():
            for arrived in followers:
                arrived.set()
