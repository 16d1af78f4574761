"""Logging of every process of the governor: events with stable dotted names, not sentences.

On a terminal lines are formatted for people, elsewhere each line is one JSON object. Lines go to standard error: standard
output is for the results of the command line. A line and its newline are written together, since all processes of a
daemon share the file. structlog is imported with the first line: it takes 60 ms, in which the forkserver imports too.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger, Processor

LogFormat = Literal["console", "json"]


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
    """`console` when standard error is a terminal, else `json`."""
    return "console" if _on_terminal() else "json"


def configure(
    *, log_format: LogFormat, level: str = "info", stream: TextIO | None = None, **bound: object
) -> None:
    """Sets up structlog for this process; `bound` is added to every line (run, conductor, ...). Lines go to `stream`, by default to
    standard error.

    Records of the standard library's logging (from other libraries) are logged too, from warnings up.
    """
    import structlog  # noqa: PLC0415  # as above

    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    tracebacks = structlog.tracebacks.ExceptionDictTransformer(
        show_locals=False  # they may contain users' data, and tokens
    )
    renderer: list[Processor] = (
        [
            structlog.dev.ConsoleRenderer(
                colors=_on_terminal(),
                exception_formatter=structlog.dev.plain_traceback,  # no local variables, as above
            )
        ]
        if log_format == "console"
        else [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer()]
    )
    stream = cast("TextIO", TolerantStream(stream or sys.stderr))
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def default() -> None:
    """For a process of a user that has not set structlog up: lines from info up go to standard error."""
    import structlog  # noqa: PLC0415  # as above

    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", TolerantStream(sys.stderr))),
        )


class _Logger:
    @cached_property
    def _logger(self) -> Any:
        import structlog  # noqa: PLC0415  # as above

        return structlog.get_logger()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)


def get_logger() -> FilteringBoundLogger:
    """A logger whose first argument is the event's dotted name."""
    return cast("FilteringBoundLogger", _Logger())


def _on_terminal() -> bool:
    stream: TextIO | None = sys.stderr  # None in a process that was started without one
    return stream is not None and not stream.closed and stream.isatty()
