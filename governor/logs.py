"""Logging of every process of the governor: events with stable dotted names, not sentences.

On a terminal lines are for people, elsewhere each line is one JSON object. Lines go to standard error: standard
output belongs to the verbs of the command line.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Literal

import structlog

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger, Processor

LogFormat = Literal["console", "json"]
_TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)  # they hold users' data, and tokens
)


def choose_format() -> LogFormat:
    """`console` when a person looks at standard error, else `json`."""
    return "console" if sys.stderr.isatty() else "json"


def configure(*, log_format: LogFormat, level: str = "info", **bound: object) -> None:
    """Sets up structlog for this process; `bound` stands on every line (run, conductor, ...).

    Records of the standard library's logging (of other people's code) go the same way, warnings and above.
    """
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        if log_format == "console"
        else [_TRACEBACKS, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[_drop_internals, *renderer])
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def get_logger() -> FilteringBoundLogger:
    """A logger whose first argument is the event's dotted name."""
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger


def _drop_internals(
    logger: object, name: str, event: structlog.typing.EventDict
) -> structlog.typing.ProcessorReturnValue:
    return structlog.stdlib.ProcessorFormatter.remove_processors_meta(logger, name, event)
