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
        """Creates a file with a higher incarnation than all existing ones."""
        from governor.episodes.records.stream import SUFFIX, folder_of, stem_of, streams_of  # noqa: PLC0415  # Arrow: only where steps come

        before = streams_of(self._run_folder, self._phase)
        incarnation = before[-1][0] + 1 if before else 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        while True:
            name = f"{stem_of(self._phase)}.{worker}.{incarnation}{SUFFIX}"
            try:
                return os.open(folder_of(self._run_folder) / name, flags, 0o644)
            except FileExistsError:
                incarnation += 1
