"""Connections that read the journal: each read has one of its own while it lasts, so that reads of threads do not mix.

Closing a connection while its thread reads crashes the process (SQLite frees memory in use), and a thread continues to
read when the task that waits for it was cancelled. So `close` interrupts the reads and waits for them.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from sqlite3 import Connection, Error, ProgrammingError, connect
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor.errors import JournalError
from governor.journal import schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TASKS: Final = (
    "SELECT data FROM runs JOIN records ON records.run = runs.position"
    " WHERE uid = ? AND kind = 'task' AND phase = ? ORDER BY records.position"
)
READ_ON_SECONDS: Final = 1.0
"""How long an interrupted read may take to end. The file of one that takes longer stays open until the process ends."""
THREADS: Final = 4


class TaskValue(msgspec.Struct, frozen=True, gc=False):
    """What a `TaskRecord` has for tasks that depend on it."""

    task: str
    run: int
    value: Any = None
    value_file: str | None = None


def values_of_tasks(path: Path, uid: str, phase: int) -> Iterator[TaskValue]:
    """The ended runs of tasks of a phase, for another process than the daemon. Raises JournalError."""
    decoder = msgspec.msgpack.Decoder(list[TaskValue])
    try:
        with closing(connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            for (data,) in connection.execute(_TASKS, (uid, phase)):
                yield from decoder.decode(data)
    except (Error, msgspec.MsgspecError) as error:
        raise JournalError(f"the journal {path} cannot be read: {error}") from error


class Readers:
    """Any thread may read; `threads` are for that alone, so that no slow work on files keeps a question waiting. `close` is
    called once.
    """

    def __init__(self, path: Path) -> None:
        self.closing = False
        self.threads = ThreadPoolExecutor(THREADS, "journal.reader")
        self._path = path
        self._idle: list[Connection] = [schema.connect(path)]
        self._reading: set[Connection] = set()
        self._changed = threading.Condition()

    def rows(self, question: str, parameters: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """Raises sqlite3.Error, also for a read that `close` interrupts."""
        with self._changed:
            if self.closing:
                raise ProgrammingError("the journal is closed")
            connection = self._idle.pop() if self._idle else schema.connect(self._path)
            self._reading.add(connection)
        try:
            yield from connection.execute(question, parameters)
        finally:
            with self._changed:
                self._reading.remove(connection)
                self._idle.append(connection)
                self._changed.notify_all()

    def close(self) -> None:
        """Blocks until all reads have ended."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        with self._changed:
            self.closing = True
            for connection in self._reading:
                connection.interrupt()
            self._changed.wait_for(lambda: not self._reading, READ_ON_SECONDS)
            for connection in self._idle:
                connection.close()
