"""Files of the run for runners that cannot see its folder: read before work is sent, written before ends are reported.

Rules:
1. Reading and writing is done in threads: files may be large, and are synced.
2. Messages that follow a file wait until it is written; the order is kept.
3. A file that cannot be read or written fails the run that it belongs to, and has no other effect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from governor import logs
from governor.files import write_whole
from governor.tasks.protocol import values
from governor.tasks.protocol.wire import (
    Bundle,
    File,
    Input,
    Over,
    WorkItem,
    frames,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from governor.tasks.ports import TrackTask
    from governor.tasks.protocol.wire import FromRunner

log = logs.get_logger()


@dataclass(kw_only=True, eq=False)
class FileReceiver:
    """Writes the files that one such runner sends to `folder`; `deliver` gets its other messages, in order. `track` runs a
    coroutine.
    """

    folder: Path
    deliver: Callable[[list[FromRunner]], None]
    track: TrackTask
    _waiting: deque[FromRunner] = field(default_factory=deque)
    _writing: asyncio.Task[None] | None = None
    _unwritten: str = ""

    def receive(self, documents: list[FromRunner]) -> None:
        if self._writing is None and not any(type(each) is File for each in documents):
            self.deliver(documents)
            return
        self._waiting += documents
        if self._writing is None:
            self._writing = self.track(self._write_all(), "files")

    async def drained(self) -> None:
        """Returns when everything received has been delivered."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                document = self._waiting.popleft()
                if type(document) is File:
                    await asyncio.to_thread(self._write, document)
                else:
                    self.deliver([self._with_fault(document)])
        finally:
            self._writing = None

    def _write(self, file: File) -> None:
        """In a thread."""
        folder = self.folder.resolve()
        path = (folder / file.name).resolve()
        try:
            if not path.is_relative_to(folder) or path.suffix not in values.SUFFIXES:
                raise PermissionError(f"{file.name!r} is no result of a task")
            write_whole(path, file.data)
        except (OSError, ValueError, MemoryError) as error:  # ValueError: a zero byte in the name
            log.warning("runner.file_write_failed", name=file.name, reason=str(error))
            self._unwritten = f"its result cannot be written: {type(error).__name__}: {error}"

    def _with_fault(self, document: FromRunner) -> FromRunner:
        if type(document) is not Over or not self._unwritten:
            return document
        error, self._unwritten = document.error or self._unwritten, ""
        return msgspec.structs.replace(document, error=error, value=None, value_file=None, payload=b"")


def needs_files(work_items: Sequence[WorkItem]) -> bool:
    """Whether any input is in a file."""
    return any(item.file for work in work_items for items in work.inputs.values() for item in items)


def with_files(work: WorkItem, folder: Path) -> WorkItem:
    """The work item with the contents of its input files; blocks."""
    try:
        inputs = {
            name: [
                item if item.file is None else Input(file=item.file, data=(folder / item.file).read_bytes())
                for item in items
            ]
            for name, items in work.inputs.items()
        }
    except (OSError, MemoryError) as error:
        return refused(work, error)
    return msgspec.structs.replace(work, inputs=inputs)


def refused(work: WorkItem, error: Exception) -> WorkItem:
    """A replacement for a work item that cannot be sent: its runs fail with the reason."""
    why = f"the task could not be sent to its runner: {type(error).__name__}: {ascii(str(error)[:500])[1:-1]}"
    return WorkItem(
        ticket=work.ticket,
        batch="",
        task="",
        runs=work.runs,
        attempt=work.attempt,
        call=f"{__name__}:fail",
        args={"why": why},
    )


def sendable(work: WorkItem) -> WorkItem:
    """The work item, or one that fails with the reason why it cannot be encoded."""
    try:
        frames([Bundle([work])])
    except Exception as error:  # noqa: BLE001  # whatever encoding raises
        return refused(work, error)
    return work


def fail(why: str) -> Any:
    """The call of a refused task."""
    raise RuntimeError(why)
