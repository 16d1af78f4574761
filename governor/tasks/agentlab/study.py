"""What a study has achieved, kept in a folder: one JSON line for each run of a task that ended.

Rules:
1. A line is in the kernel when `enter` returns: it outlives this process. It outlives the machine after `sync`, which
   comes before anything runs that builds on it, else within `SYNC_SECONDS`: thousands that nobody waits for share one.
2. A line that was half written when the machine died is ignored, and its task runs again.
3. A folder has one user at a time; the kernel gives it back, however its user ends.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING, Final, Self

import msgspec

from governor import logs
from governor.errors import TryAgain
from governor.messages import TaskRecord

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

NAME: Final = "tasks.jsonl"
SYNC_SECONDS: Final = 0.1

log = logs.get_logger()


class Study:
    """A context manager. Entering raises OSError when the folder cannot be made or written, and TryAgain while another
    call works in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._path = self.folder / NAME
        self._file = -1
        self._dirty = False

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._end_line()
        except BlockingIOError:
            os.close(self._file)
            raise TryAgain(
                f"the study in {self.folder} is being worked on by another call: start again when that has ended"
            ) from None
        except OSError:
            os.close(self._file)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.sync()
        finally:
            os.close(self._file)

    def succeeded(self, tasks: Collection[str], *, root: Path | None = None) -> list[TaskRecord]:
        """The records of the runs of these tasks that succeeded earlier, and whose values are still there: below `root`,
        None for the study's own folder.
        """
        found: dict[tuple[str, int], TaskRecord] = {}
        for number, line in enumerate(self._path.read_bytes().splitlines(), start=1):
            try:
                # Not msgspec's JSON: it has no NaN, and a loss may be one
                record = msgspec.convert(json.loads(line), TaskRecord)
            except ValueError as error:
                log.warning("study.line_skipped", path=str(self._path), line=number, reason=str(error))
                continue
            if record.task not in tasks or record.outcome != "succeeded":
                continue
            if record.value_file is None or ((root or self.folder) / record.value_file).is_file():
                found[record.task, record.run] = record
        return list(found.values())

    def enter(self, record: TaskRecord) -> None:
        """Returns when it is in the kernel. Raises OSError."""
        line = json.dumps(msgspec.to_builtins(record)).encode() + b"\n"
        written = os.write(self._file, line)
        while written < len(line):  # the disk is full, or nearly: the next write says so
            written += os.write(self._file, line[written:])
        self._dirty = True

    def sync(self) -> None:
        """Returns when all that was entered is on the disk. Raises OSError."""
        if self._dirty:
            self._dirty = False
            os.fsync(self._file)

    def _end_line(self) -> None:
        """Of what was half written."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")
