"""The streams of `governor try`, whatever user code does to its own.

Rules:
1. A reader that is gone (``| head``) or a full disk is no error, of ours or of user code.
2. What is said here has descriptors of its own: user code may close or replace its streams.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from governor.logs import TolerantOutput

if TYPE_CHECKING:
    from typing import TextIO

_ours: Final[dict[str, TextIO]] = {}


def take() -> None:
    """From now on user code has tolerant streams, and `say` and `note` print beside them."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        given: Any = getattr(sys, name)
        try:
            if given.fileno() != descriptor:
                continue
            own = os.dup(descriptor)
        except (AttributeError, OSError, ValueError):  # not a process of its own
            continue
        flush()
        encoding, lines = given.encoding, given.line_buffering
        _ours[name] = _stream(own, encoding, lines=True)
        setattr(sys, name, _stream(descriptor, encoding, lines=lines or given.write_through))


def _stream(descriptor: int, encoding: str, *, lines: bool) -> TextIO:
    raw = os.fdopen(descriptor, "wb", closefd=False)
    return TolerantOutput(raw, encoding=encoding, errors="backslashreplace", line_buffering=lines)


def flush() -> None:
    """What user code has printed comes before what is printed next."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # user code may have put anything there
            stream.flush()


def say(text: str, *, err: bool = False) -> None:
    """Prints a result; with `err` something for the person."""
    flush()
    click.echo(text, file=_ours.get("stderr" if err else "stdout"), err=err)


def note(text: str) -> None:
    say(f"governor: {text}", err=True)
