"""Connections that read the journal: one for each thread, so that reads of threads do not mix.

Closing a connection while its thread reads crashes the process (SQLite frees memory in use), and a thread continues to
read when the task that waits for it was cancelled. So reads are counted, and `close` interrupts them and waits.
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
"""How long an interrupted read may take to end. The file of one that takes longer stays open until the process ends."""


class _Reader:
    """The connection of one thread, with the number of its active reads."""

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
    """Any thread may read. `close` is called once."""

    def __init__(self, path: Path) -> None:
        self.closing = False
        self._path = path
        self._of_thread = threading.local()
        self._all: list[_Reader] = []
        self._opening = threading.Lock()
        self._mine()

    def rows(self, question: str, parameters: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """Raises sqlite3.Error, also for a read that `close` interrupts."""
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
        """Blocks until all reads have ended."""
        with self._opening:
            self.closing = True
        for reader in self._all:
            reader.close()
