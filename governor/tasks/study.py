"""What a study has achieved, kept in a folder: one JSON line for each task that ended, synced before anybody builds on it.

A line that was half written when the machine died is ignored, and its task runs again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from governor import logs
from governor.messages import TaskRecord

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

NAME: Final = "tasks.jsonl"

log = logs.get_logger()


class Study:
    """Raises OSError when the folder cannot be made or written."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self._path = self.folder / NAME
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(TaskRecord)

    def succeeded(self, tasks: Collection[str]) -> list[TaskRecord]:
        """The records of these tasks that succeeded earlier, and whose values are still there."""
        found: dict[str, TaskRecord] = {}
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                record = self._decoder.decode(line)
            except msgspec.MsgspecError as error:
                log.warning("study.line_ignored", path=str(self._path), line=number, reason=str(error))
                continue
            if record.task in tasks and record.outcome == "succeeded" and self._has_value(record):
                found[record.task] = record
        return list(found.values())

    def enter(self, record: TaskRecord) -> None:
        """Returns when it is on the disk."""
        with self._path.open("ab") as file:
            if file.tell() and not self._ends_with_newline():
                file.write(b"\n")
            file.write(self._encoder.encode(record) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _has_value(self, record: TaskRecord) -> bool:
        return record.value_file is None or (self.folder / record.value_file).is_file()

    def _ends_with_newline(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
