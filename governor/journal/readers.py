"""Connections that read the journal: one for each thread, since a read on a shared one meets those of other threads.

A connection that is closed while its thread reads takes the process along (SQLite frees what is in use), and a thread goes on
reading when the task that waits for it was cancelled. So reads are counted, and `close` interrupts them and
waits.
"""

from __future__ import annotations

import sqlite3
import threading
from typing import TYPE_CHECKING, Any, Final

from governor.journal import schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READ_ON_SECONDS: Final = 1.0
"""For a read that was interrupted to end. One that takes longer keeps its file until the process ends."""


class _Reader:
    """The connection of one thread, and how many of its reads are not over."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._at_work = 0
        self._changed = threading.Condition()

    def rows(self, question: str, parameters: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        with self._changed:
            self._at_work += 1
        try:
            yield from self.connection.execute(question, parameters)
        finally:
            with self._changed:
                self._at_work -= 1
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            if self._at_work:
                self.connection.interrupt()
            if self._changed.wait_for(lambda: not self._at_work, READ_ON_SECONDS):
                self.connection.close()


class Readers:
    """Any thread may read, but for its end: `close` is called once."""

    def __init__(self, path: Path) -> None:
        self.closing = False
        self._path = path
        self._of_thread = threading.local()
        self._all: list[_Reader] = []
        self._opening = threading.Lock()
        self._mine()

    def rows(self, question: str, parameters: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """Raises sqlite3.Error, also for what `close` has cut off."""
        return self._mine().rows(question, parameters)

    def _mine(self) -> _Reader:
        with self._opening:
            if self.closing:
                raise sqlite3.ProgrammingError("the journal is closed")
            reader: _Reader | None = getattr(self._of_thread, "reader", None)
            if reader is None:
                reader = self._of_thread.reader = _Reader(schema.connect(self._path))
                self._all.append(reader)
        return reader

    def close(self) -> None:
        """Blocks until what is read is cut off."""
        with self._opening:
            self.closing = True
        for reader in self._all:
            reader.close()
