"""Steps from runners that do not see the run's folder: each of their streams is written to a file there, byte by byte."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from governor.files import append

if TYPE_CHECKING:
    from pathlib import Path


class SentSteps:
    """The streams of one phase. Not thread-safe."""

    def __init__(self, run_folder: Path, phase: str) -> None:
        self._run_folder = run_folder
        self._phase = phase
        self._files: dict[str, int] = {}
        self._headless: set[str] = set()
        """Streams whose beginning could not be written: the rest would be unreadable."""

    def write(self, data: bytes, *, stream: str, worker: int) -> None:
        """Appends data to a stream. Raises OSError, and has written none of it then."""
        if not data:
            return
        if stream in self._headless:
            raise OSError("the beginning of its stream could not be written")
        if stream not in self._files:
            self._files[stream] = self._create(worker)
        file = self._files[stream]
        try:
            append(file, data)
        except OSError:
            if os.fstat(file).st_size == 0:
                self._headless.add(stream)
            raise

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _create(self, worker: int) -> int:
        from governor.episodes.records.stream import create, next_incarnation  # noqa: PLC0415  # Arrow: only where steps come

        return create(self._run_folder, self._phase, worker, next_incarnation(self._run_folder, self._phase))
