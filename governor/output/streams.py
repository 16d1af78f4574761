"""What Python code prints through `sys.stdout` and `sys.stderr` becomes records in the spools that `capture` has opened.

A record is a whole line, or what is held of a line when it is flushed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final

from governor.logs import TolerantOutput
from governor.output import attribution, spool

HELD_CHARACTERS: Final = 8192
"""Of a line that is not over; more of it is written."""
_HEADER: Final = spool.RECORD + b"{"
current_record = threading.local()
"""`fields`: level and logger of the record that a handler is printing in this thread."""
_forked = b""
"""In a fork of user code: its pid, as a fragment."""


class Output(TolerantOutput):
    """`sys.stdout` or `sys.stderr`; `index` is 0 or 1."""

    def __init__(self, index: int, descriptor: int) -> None:
        super().__init__(
            os.fdopen(index + 1, "wb", closefd=False),
            encoding="utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        self.index = index
        self.spool = descriptor
        self.is_captured = True
        self._identity = (0, 0)
        self.identify()
        self._lock = threading.RLock()
        """The flusher takes what is held of a thread that is within a line. A signal's handler may print, too."""
        self._held: dict[int, tuple[bytes, bytes, str]] = {}
        """By thread: the fields of its line, those of a handler among them, and its text."""
        self._unfinished: dict[int, bytes] = {}
        """Threads whose last record is a part of a line: the fields of a handler in it."""
        self._lost = 0
        self._was_closed = False

    def identify(self) -> None:
        """Its spool is a new one."""
        status = os.fstat(self.spool)
        self._identity = (status.st_dev, status.st_ino)
        self.is_captured = True
        self._was_closed = False

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        thread, logged = threading.get_ident(), getattr(current_record, "fields", b"")
        with self._lock:
            begun = self._held.pop(thread, None)
            if logged != (self._unfinished.get(thread, logged) if begun is None else begun[1]):
                # A message ends a progress bar, and what is printed behind a message is none.
                self._put(thread, *(begun or (self._fields(), b"", "")), more=False)
                begun = None
            fields, _, held = (self._fields(), logged, "") if begun is None else begun
            if "\n" in text:
                whole, _, rest = text.rpartition("\n")
                self._put(thread, fields, logged, held + whole, more=False)
                if not rest:
                    return len(text)
                fields, held = self._fields(), rest
            else:
                held += text
            if len(held) > HELD_CHARACTERS:
                self._put(thread, fields, logged, held, more=True)
            elif held:
                self._held[thread] = (fields, logged, held)
        return len(text)

    def flush(self) -> None:
        with self._lock:
            self._put_held()
        super().flush()

    def flush_soon(self) -> None:
        """As `flush`, for the event loop: it does not wait for a thread that is writing, to a pipe for one."""
        if self._lock.acquire(blocking=False):
            try:
                self._put_held()
                super().flush()
            finally:
                self._lock.release()

    def _put_held(self) -> None:
        while self._held:
            thread, held = self._held.popitem()
            self._put(thread, *held, more=True)

    def end_lines(self) -> None:
        """What is written next is the beginning of a line."""
        if self._held or self._unfinished:
            with self._lock:
                for thread in {*self._held, *self._unfinished}:
                    self._put(thread, *self._held.pop(thread, (self._fields(), b"", "")), more=False)
        try:  # after each run of a task: `suppress` takes three times as long as all of this
            self.buffer.flush()
        except (OSError, ValueError):
            return

    def forget(self) -> None:
        """In a fork: what is held is its parent's, and a thread that it does not have may hold the lock."""
        self._lock = threading.RLock()
        self._held.clear()
        self._unfinished.clear()

    def _fields(self) -> bytes:
        return _forked + attribution.current() + getattr(current_record, "fields", b"")

    def _put(self, thread: int, fields: bytes, logged: bytes, text: str, *, more: bool) -> None:
        data = text.encode("utf-8", "backslashreplace")
        descriptor = self._descriptor()
        if descriptor is None:
            if not (self.is_captured and self._was_closed):
                with contextlib.suppress(OSError, ValueError):
                    self.buffer.write(data if more else data + b"\n")
                    self.buffer.flush()
            return
        if more or thread in self._unfinished or len(data) > spool.LINE_BYTES or b"\n" in data:
            since = spool.size(descriptor)
            left = self._records(thread, fields, logged, data, more=more, since=since)
        else:
            left = spool.record(fields, data)
        if self._lost:
            left = left.replace(_HEADER, b'%b"lost":%d,' % (_HEADER, self._lost), 1)
        process = attribution.process_attribution()
        try:
            while left:
                written = os.write(descriptor, left)
                left = left[written:]
                if process is not None and not _forked:
                    process.tagged[self.index] += written
            self._lost = 0
        except OSError:
            self._lost += data.count(b"\n") + 1

    def _descriptor(self) -> int | None:
        """The spool's, whatever user code has done with descriptors; None where this stream goes elsewhere, or nowhere."""
        if not self.is_captured:
            return None
        try:
            if self.is_spool(self.index + 1):
                return self.index + 1
        except OSError:
            self._was_closed = True
        # After user code has closed it, another file may have its number; and after `os.closerange` that of `spool`, too.
        with contextlib.suppress(OSError):
            if self._was_closed and self.is_spool(self.spool):
                return self.spool
        return None

    def is_whole(self) -> bool:
        return self.is_captured and self.is_spool(self.index + 1) and os.fstat(self.spool).st_nlink > 0

    def is_spool(self, descriptor: int) -> bool:
        status = os.fstat(descriptor)
        return (status.st_dev, status.st_ino) == self._identity

    def _records(
        self, thread: int, fields: bytes, logged: bytes, data: bytes, *, more: bool, since: int
    ) -> bytes:
        """What is to be written. Of much text at once only what it belongs to is a record: that is faster for both sides."""
        if more:
            self._unfinished[thread] = logged
            return _parts(thread, fields, data, more=True)
        first = b""
        if thread in self._unfinished:
            del self._unfinished[thread]
            line, newline, data = data.partition(b"\n")
            first = _parts(thread, fields, line, more=False)
            if not newline:
                return first
        if len(data) > spool.LINE_BYTES:
            return b"%b%b\n%b" % (first, data, spool.mark(fields, since + len(first)))
        return first + b"".join(spool.record(fields, line) for line in data.split(b"\n"))


def _parts(thread: int, fields: bytes, line: bytes, *, more: bool) -> bytes:
    """Records of one line that has begun before, or (`more`) is not over."""
    part = b'%b"part":%d,' % (fields, thread)
    *starts, last = range(0, max(len(line), 1), spool.LINE_BYTES)
    return b"".join(
        spool.record(part + b'"more":1,', line[start : start + spool.LINE_BYTES]) for start in starts
    ) + spool.record(part + b'"more":1,' * more, line[last:])


def note_fork() -> None:
    """In a fork of user code: what it prints bears its pid from now on."""
    global _forked  # noqa: PLW0603  # as of `attribution`
    _forked = spool.fragment(pid=os.getpid())
