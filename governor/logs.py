"""Logging of every process of the governor: events with stable dotted names, not sentences.

On a terminal lines are formatted for people, below systemd each is an entry of its journal with fields (`journald`),
elsewhere each line is one JSON object. Lines go to standard error: standard output is for the results of the command
line. A line and its newline are written together, since all processes of a daemon share the file. structlog is imported
with the first line: it takes 60 ms, in which the forkserver imports too.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, cast

from governor import journald

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from structlog.typing import EventDict, FilteringBoundLogger, Processor

LogFormat = Literal["console", "json", "journal"]
FIRST_LINES: Final = 20
"""Of a kind, before they are counted."""
_OF_ALL: Final = ("run", "run_name", "phase", "conductor", "outcome")
"""The keys that lines of one kind have in common."""
_LINE_CHARACTERS: Final = 8192
"""Of printed text that is one line of the log at most."""


class TolerantStream:
    """Standard error, for loggers: with a full disk, a reader that is gone, or a closed stream, lines are lost and no error
    is raised.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed
            if self._stream is not None:
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.flush()


class TolerantOutput(io.TextIOWrapper):
    """Standard output or error of user code: a closed terminal, a full disk or a reader that is gone is not its fault.
    What closes it does not take it from what runs after.
    """

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # ValueError: what is below was closed
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().flush()

    def close(self) -> None:
        self.flush()


_replaced: list[object] = []
"""Streams that would close their descriptor if they were collected."""


def share_output(descriptor: int) -> None:
    """What this process prints, and what it starts, goes to this file from now on, line by line."""
    for stream, number in (("stdout", 1), ("stderr", 2)):
        if number != descriptor:
            os.dup2(descriptor, number)
        raw = os.fdopen(number, "wb", closefd=False)
        if not isinstance(replaced := getattr(sys, stream), TolerantOutput):
            _replaced.append(replaced)
        output = TolerantOutput(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        setattr(sys, stream, output)


def choose_format() -> LogFormat:
    """`console` when standard error is a terminal, `journal` when it is systemd's journal, else `json`."""
    if _on_terminal():
        return "console"
    return "journal" if journald.is_journal(2) else "json"


def configure(
    *,
    log_format: LogFormat,
    level: str = "info",
    stream: TextIO | None = None,
    without: Collection[str] = (),
    beside_user_code: bool = False,
    **bound: object,
) -> None:
    """Sets up the log of this process; `bound` is added to every line (run, conductor, ...). Lines go to `stream`, by
    default standard error. The events `without` are not logged. `beside_user_code`: structlog itself is left to user code.

    Records of the standard library's logging (from other libraries) are logged too, from warnings up.
    """
    import structlog  # noqa: PLC0415  # as above

    stream = sys.stderr if stream is None else stream
    processors: list[Processor] = [
        partial(_completed, frozenset(without), bound),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *_renderer(log_format, stream),
    ]
    level_class = structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()])
    factory = structlog.WriteLoggerFactory(file=cast("TextIO", TolerantStream(stream)))
    if beside_user_code:
        _Logger.make = lambda: structlog.wrap_logger(
            factory(), processors, level_class, dict, cache_logger_on_first_use=True
        )
    else:
        structlog.configure(processors, level_class, logger_factory=factory, cache_logger_on_first_use=True)
    logging.basicConfig(level=logging.WARNING, handlers=[_ToStructlog()], force=True)


def use_standard_logging() -> None:
    """Events go to the standard library's logger `governor`, in a script that has not configured structlog when the first one comes:
    its own handlers and levels hold for them.
    """
    _Logger.make = _Logger.make or _by_standard_logging


def _by_standard_logging() -> Any:
    import structlog  # noqa: PLC0415  # as above

    if structlog.is_configured():
        return structlog.get_logger()
    processors: list[Processor] = [
        structlog.stdlib.filter_by_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["event"]),
    ]
    logger = logging.getLogger("governor")
    return structlog.wrap_logger(logger, processors, structlog.stdlib.BoundLogger, dict)


def _completed(
    without: frozenset[str], bound: dict[str, object], _logger: Any, _method: str, line: EventDict
) -> EventDict:
    import structlog  # noqa: PLC0415  # as above

    if line.get("event") in without:
        raise structlog.DropEvent
    return {**line, **{key: bound[key] for key in bound if key not in line}}


def _renderer(log_format: LogFormat, stream: TextIO | None) -> list[Processor]:
    import structlog  # noqa: PLC0415  # as above

    if log_format == "console":
        return [
            _without_controls,
            structlog.dev.ConsoleRenderer(
                colors=_on_terminal(),
                exception_formatter=structlog.dev.plain_traceback,  # no local variables: see below
            ),
        ]
    tracebacks = structlog.processors.ExceptionRenderer(
        structlog.tracebacks.ExceptionDictTransformer(
            show_locals=False  # they may contain users' data, and tokens
        )
    )
    as_json = structlog.processors.JSONRenderer()
    if log_format == "json":
        return [tracebacks, as_json]
    journal = journald.Journal()

    def deliver(logger: Any, method: str, line: EventDict) -> str:
        """To the journal; without one to standard error, as JSON."""
        shown = (
            structlog.processors.format_exc_info(logger, method, dict(line)) if "exc_info" in line else line
        )
        if not journal.send(shown):
            text = as_json(logger, method, tracebacks(logger, method, line))
            descriptor = _descriptor(stream)
            data = f"{text if isinstance(text, str) else text.decode()}\n".encode(errors="backslashreplace")
            if descriptor is not None:
                journald.written_at_once(descriptor, data)
        raise structlog.DropEvent

    return [deliver]


def _without_controls(_logger: Any, _method: str, line: EventDict) -> EventDict:
    """Text of users must not reach a terminal as it is."""
    return {
        key: journald.printable(value) if isinstance(value, str) and key != "exception" else value
        for key, value in line.items()
    }


class _ToStructlog(logging.Handler):
    """Records of other libraries are lines as ours are."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = "critical" if record.levelno >= logging.CRITICAL else record.levelname.lower()
            method = getattr(log, level, log.warning)
            data = getattr(record, "data", None)
            method(
                record.getMessage(),
                logger=record.name,
                exc_info=record.exc_info or None,
                **(data if isinstance(data, dict) else {}),
            )
        except Exception:  # noqa: BLE001  # as every handler of the standard library
            self.handleError(record)


class _Printed(io.TextIOBase):
    """What is printed in this process becomes lines of its log."""

    def __init__(self, name: str, descriptor: int) -> None:
        self._name = name
        self._descriptor = descriptor
        self._begun = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            if len(self._begun) > _LINE_CHARACTERS:
                lines, self._begun = [*lines, self._begun], ""
            for line in filter(None, map(str.rstrip, lines)):
                log.warning("output.raw", stream=self._name, text=line[:_LINE_CHARACTERS])
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor


def capture_strays(log_format: LogFormat) -> None:
    """In a process without user code: warnings, uncaught errors and what libraries print are lines of the log, too. Call it
    after `configure`. On a terminal, all of it stays as it is.
    """
    if log_format == "console":
        return
    logging.captureWarnings(capture=True)
    sys.excepthook = lambda kind, error, trace: log.critical("process.failed", exc_info=(kind, error, trace))
    threading.excepthook = _thread_failed
    sys.unraisablehook = _error_ignored
    for number, name in ((1, "stdout"), (2, "stderr")):
        _replaced.append(getattr(sys, name))
        setattr(sys, name, _Printed(name, number))


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    name = failed.thread.name if failed.thread else ""
    log.error(
        "thread.failed", thread=name, exc_info=(failed.exc_type, failed.exc_value, failed.exc_traceback)
    )


def _error_ignored(ignored: sys.UnraisableHookArgs) -> None:
    error = (ignored.exc_type, ignored.exc_value, ignored.exc_traceback)
    log.error("error.ignored", where=repr(ignored.object)[:200], text=ignored.err_msg, exc_info=error)


def default() -> None:
    """For a process of a user that has not set structlog up when the first line comes: lines from info up go to standard error."""
    _Logger.make = _Logger.make or _by_default


def _by_default() -> Any:
    import structlog  # noqa: PLC0415  # as above

    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", TolerantStream(sys.stderr))),
        )
    return structlog.get_logger()


def as_user_output() -> None:
    """For a process that has no log of ours, a runner: lines from info up go to Python's logging, and so to the user's output.
    The user's own structlog stays as it is. Call it before the first line.
    """
    _Logger.make = _by_logging


def _by_logging() -> Any:
    import structlog  # noqa: PLC0415  # as above

    logger = logging.getLogger("governor")
    logger.setLevel(logging.INFO)
    shown = structlog.dev.ConsoleRenderer(
        colors=False, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )
    level = structlog.make_filtering_bound_logger(logging.INFO)
    return structlog.wrap_logger(logger, processors=[shown], wrapper_class=level)


class _Logger:
    make: Callable[[], Any] | None = None
    """Where not structlog's own configuration counts."""

    @cached_property
    def _logger(self) -> Any:
        import structlog  # noqa: PLC0415  # as above

        return structlog.get_logger() if _Logger.make is None else _Logger.make()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)


def get_logger() -> FilteringBoundLogger:
    """A logger whose first argument is the event's dotted name."""
    return cast("FilteringBoundLogger", _Logger())


log = get_logger()


class Repeated:
    """Lines of kinds that may come in thousands: of each kind the `first` ones are logged, then one line in `every` seconds that
    counts. `flush` logs what is not told yet, and begins anew.
    """

    def __init__(
        self, *, first: int = FIRST_LINES, every: float = 60.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._first = first
        self._every = every
        self._now = now
        self._shown: Counter[tuple[str, str]] = Counter()
        self._held: dict[tuple[str, str], _Held] = {}

    def log(self, level: str, event: str, *, kind: str = "", **data: Any) -> None:
        """`kind` distinguishes lines of one event, by a few values."""
        key = event, kind
        if self._shown[key] < self._first:
            self._shown[key] += 1
            getattr(log, level)(event, **data)
            return
        now = self._now()
        held = self._held.setdefault(key, _Held(level, now, data))
        held.count += 1
        if now - held.since >= self._every:
            self._tell(key)

    def flush(self) -> None:
        for key in list(self._held):
            self._tell(key)
        self._shown.clear()

    def _tell(self, key: tuple[str, str]) -> None:
        held = self._held.pop(key)
        seconds = self._now() - held.since
        about = {name: held.data[name] for name in _OF_ALL if name in held.data}
        getattr(log, held.level)(
            "lines.left_out",
            lines=key[0],
            count=held.count,
            seconds=round(seconds, 3),
            per_minute=round(60 * held.count / max(seconds, 1.0)),
            **about,
        )


@dataclass(slots=True)
class _Held:
    level: str
    since: float
    data: dict[str, Any]
    count: int = 0


def _descriptor(stream: TextIO | None) -> int | None:
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):  # ValueError: closed
        return None


def _on_terminal() -> bool:
    stream: TextIO | None = sys.stderr  # None in a process that was started without one
    return stream is not None and not stream.closed and stream.isatty()
