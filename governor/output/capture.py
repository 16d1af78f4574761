"""The process' side: its standard output and standard error go to spools from now on.

Rules:
1. Descriptors 1 and 2 are spools: what C code and subprocesses print is there when their `write` returns.
2. `sys.stdout` and `sys.stderr` write records: whole lines, and what is held of a line when it is flushed. Where user code has
   sent a descriptor elsewhere (`os.dup2`), they write there, and no records; where it has closed it, to the spool.
3. Loggers: what a `StreamHandler` of user code prints bears level and logger; where nobody has set up `logging`, each record that its
   logger lets through is printed. Warnings are records of the logger `py.warnings`.
4. Nothing here raises or waits: with a full disk lines are lost, and counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import logging
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any, Final

from governor.logs import TolerantOutput
from governor.output import attribution, spool

VARIABLE: Final = "RUN_GOVERNOR_OUTPUT"
SUFFIXES: Final = tuple(spool.STREAMS)
HELD_CHARACTERS: Final = 8192
"""Of a line that is not over; more of it is written."""
_LINE_BUFFERED: Final = 1
"""_IOLBF of libc."""
_HEADER: Final = spool.RECORD + b"{"
_record = threading.local()
"""`fields`: level and logger of the record that a handler is printing in this thread."""
_forked = b""
"""In a fork of user code: its pid, as a fragment."""
_place: tuple[str, str] | None = None
"""Folder and conductor of this process' spools."""
_outputs: list[Output] = []
_kept: list[object] = []
"""Streams that would close their descriptor if they were collected."""


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
        thread, logged = threading.get_ident(), getattr(_record, "fields", b"")
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
        return _forked + attribution.current() + getattr(_record, "fields", b"")

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


class _LastHandler(logging.StreamHandler[Any]):
    """For records of loggers without a handler, instead of the standard library's, which prints warnings alone."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


_emit = logging.StreamHandler.emit


def _emit_with_fields(handler: logging.StreamHandler[Any], record: logging.LogRecord) -> None:
    outer = getattr(_record, "fields", b"")
    _record.fields = spool.fragment(level=record.levelname.lower(), logger=record.name)
    try:
        _emit(handler, record)
    finally:
        _record.fields = outer


_show = warnings.showwarning


def _show_warning(*args: Any, **kwargs: Any) -> None:
    outer = getattr(_record, "fields", b"")
    _record.fields = spool.fragment(level="warning", logger="py.warnings")
    try:
        _show(*args, **kwargs)
    finally:
        _record.fields = outer


def capture(folder: Path, *, conductor: str) -> int | None:
    """Redirects this process, and what it starts, to new spools in `folder` (`spool.folder_of`); again in a process whose output
    is captured already: to other ones.

    Returns a duplicate of its former standard error, for our own log; None if there was none. Raises OSError, and
    has changed nothing then.
    """
    global _place  # noqa: PLW0603  # as of `attribution`
    stem = spool.new_stem(conductor)
    page = folder / f"{stem}.{spool.NOW}"
    with contextlib.ExitStack() as made:
        spool.make_folder(folder)
        made.callback(page.unlink, missing_ok=True)
        # before the spools: their reader looks for its page
        process = attribution.ProcessAttribution((-1, -1), page)
        spools = []
        for suffix in SUFFIXES:
            spools.append(spool.create(folder, stem, suffix))
            made.callback(os.close, spools[-1])
        process.use((spools[0], spools[1]))
        made.pop_all()
    try:
        former: int | None = os.dup(2)
    except OSError:
        former = None
    if _outputs:
        process.use(_redirect_again(spools))
    else:
        _redirect(spools)
    attribution.use(process)
    _place = (str(folder), conductor)
    return former


def goes_to(folder: Path, *, conductor: str) -> bool:
    """Whether the output is captured there, and user code has left it so."""
    with contextlib.suppress(OSError):
        return _place == (str(folder), conductor) and all(map(Output.is_whole, _outputs))
    return False


def for_child() -> dict[str, str]:
    """Environment variables for a Python process that this one starts, and that calls `capture_as_told`."""
    return {} if _place is None else {VARIABLE: json.dumps(_place)}


def capture_as_told() -> None:
    """As the process that has started this one is captured; if it is not, or if a disk is full, output goes where it went."""
    place = os.environ.pop(VARIABLE, "")
    with contextlib.suppress(OSError, ValueError):
        folder, conductor = json.loads(place)
        if (former := capture(Path(folder), conductor=conductor)) is not None:
            os.close(former)


def release(descriptor: int) -> None:
    """The output of a captured process goes to `descriptor` from now on, as it is; its spools are complete. Threads of user code may
    print on meanwhile.
    """
    flush()
    attribution.use(None)
    _redirect_again([spool.above_streams(os.dup(descriptor)) for _ in _outputs])
    for output in _outputs:
        output.is_captured = False


def _redirect(spools: list[int]) -> None:
    for index, (name, descriptor) in enumerate(zip(("stdout", "stderr"), spools, strict=True)):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            getattr(sys, name).flush()
        os.dup2(descriptor, index + 1)
        _kept.extend((getattr(sys, name), getattr(sys, f"__{name}__")))
        output = Output(index, descriptor)
        _outputs.append(output)
        setattr(sys, name, output)
        setattr(sys, f"__{name}__", output)
    logging.StreamHandler.emit = _emit_with_fields  # type: ignore[method-assign, assignment]
    logging.lastResort = _LastHandler()
    warnings.showwarning = _show_warning
    faulthandler.enable(file=spools[1])
    os.register_at_fork(after_in_child=_after_fork)
    with contextlib.suppress(ValueError):  # another libc
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _LINE_BUFFERED, ctypes.c_size_t(0))


def _redirect_again(descriptors: list[int]) -> tuple[int, int]:
    """Streams and handlers of user code hold the `Output`s, and faulthandler a descriptor: these stay. Returns the descriptors."""
    flush()
    for output, descriptor in zip(_outputs, descriptors, strict=True):
        os.dup2(descriptor, output.index + 1)
        os.dup2(descriptor, output.spool, inheritable=False)
        os.close(descriptor)
        output.identify()
    return _outputs[0].spool, _outputs[1].spool


def logger(name: str = "context") -> logging.Logger:
    """What user code gets as `context.log`: every level is printed, however it has set up `logging`."""
    one = logging.getLogger(name)
    if not one.handlers:
        one.setLevel(logging.DEBUG)
        one.propagate = False
        one.addHandler(_LastHandler())
    return one


def flush() -> None:
    """Writes what is held of lines that are not over."""
    for output in _outputs:
        output.flush()


def flush_soon() -> None:
    """As `flush`, for an event loop."""
    for output in _outputs:
        output.flush_soon()


def take_handlers(name: str) -> None:
    """The handlers that our own log has on the root logger serve the logger `name` alone, and user code sets up the root as in any
    script.
    """
    ours, logging.root.handlers = logging.root.handlers, []
    one = logging.getLogger(name)
    for handler in (*ours, logging.lastResort):
        if handler is not None:
            one.addHandler(handler)


def end_lines() -> None:
    """As `flush`; and no line goes on behind it."""
    for output in _outputs:
        output.end_lines()
    if not _outputs or sys.stdout is not _outputs[0] or sys.stderr is not _outputs[1]:
        flush()


def _after_fork() -> None:
    global _forked  # noqa: PLW0603  # as of `attribution`
    _forked = spool.fragment(pid=os.getpid())
    if (process := attribution.process_attribution()) is not None:
        process.leave()
    for stream in (sys.__stdout__, sys.__stderr__):
        if isinstance(stream, Output):
            stream.forget()
