"""Raw text of our own processes: what C libraries print, and the last words of an interpreter.

It goes to a file that the daemon reads: a line is there also when the process has been killed, and a write never waits for
a reader. User code does not print here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO

from governor import logs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READ_LIMIT: Final = 64 * 1024
"""Bytes that are logged at once; what is more is counted."""

log = logs.get_logger()


class RawOutput:
    """A file, and what has been logged of it. `event` is the name of a line."""

    def __init__(self, path: Path, *, event: str) -> None:
        self.path = path
        self._event = event
        self.remove()

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def log_new(self, **about: object) -> list[str]:
        """Logs what has been written since, line by line, and returns that. Reads a small file of a local folder."""
        try:
            with self.path.open("r+b") as file:
                size = os.fstat(file.fileno()).st_size
                if not size:
                    return []
                data = file.read(READ_LIMIT)
                file.truncate(0)  # it is written with O_APPEND
        except OSError:
            return []
        lines = [line for line in data.decode(errors="backslashreplace").splitlines() if line.strip()]
        for line in lines:
            log.warning(self._event, text=line, **about)
        if size > len(data):
            log.warning(self._event, text=f"{size - len(data)} more bytes are left out", **about)
        return lines


@contextlib.contextmanager
def redirection(path: str) -> Iterator[None]:
    """As `redirected`, inside the context alone."""
    kept = [os.dup(number) for number in (1, 2)]
    try:
        redirected(path)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


def redirected(path: str) -> TextIO | None:
    """Standard output and error of this process go to the file from now on, also of C code; returns the former standard error.
    Without the file nothing changes.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return sys.stderr
    try:
        former = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    except OSError:
        former = None
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)
    return former
