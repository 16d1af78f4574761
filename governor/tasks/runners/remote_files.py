"""Files of the run for runners that cannot see its folder: read before work is sent, written before ends are told.

Rules:
1. Reading and writing is done in threads: files may be large, and are synced.
2. What a runner says after a file waits until that is written; the order stays.
3. A file that cannot be read or written costs the run that it belongs to, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections import deque
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
    Work,
    frames,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from governor.tasks.ports import Hold
    from governor.tasks.protocol.wire import FromRunner

log = logs.get_logger()


class Intake:
    """What one such runner says, its files already written. `tell` gets all else, in order; `hold` keeps a task."""

    def __init__(
        self, *, folder: Path, threads: Executor, tell: Callable[[list[FromRunner]], None], hold: Hold
    ) -> None:
        self._folder = folder.resolve()
        self._threads = threads
        self._tell = tell
        self._hold = hold
        self._waiting: deque[FromRunner] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._unwritten = ""

    def take(self, documents: list[FromRunner]) -> None:
        if self._writing is None and not any(type(each) is File for each in documents):
            self._tell(documents)
            return
        self._waiting += documents
        if self._writing is None:
            self._writing = self._hold(self._write_all(), "files")

    async def settled(self) -> None:
        """Returns when everything that was taken has been told."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                document = self._waiting.popleft()
                if type(document) is File:
                    await loop.run_in_executor(self._threads, self._write, document)
                else:
                    self._tell([self._with_fault(document)])
        finally:
            self._writing = None

    def _write(self, file: File) -> None:
        """In a thread."""
        path = (self._folder / file.name).resolve()
        try:
            if not path.is_relative_to(self._folder) or path.suffix not in values.SUFFIXES:
                raise PermissionError(f"{file.name!r} is no result of a task")
            write_whole(path, file.data)
        except (OSError, ValueError, MemoryError) as error:  # ValueError: a zero byte in the name
            log.warning("runner.unwritten_file", name=file.name, reason=str(error))
            self._unwritten = f"its result cannot be written: {type(error).__name__}: {error}"

    def _with_fault(self, document: FromRunner) -> FromRunner:
        if type(document) is not Over or not self._unwritten:
            return document
        error, self._unwritten = document.error or self._unwritten, ""
        return msgspec.structs.replace(document, error=error, value=None, value_file=None, payload=b"")


def needs_files(works: Sequence[Work]) -> bool:
    """Whether inputs of these lie in files."""
    return any(item.file for work in works for items in work.inputs.values() for item in items)


def with_files(work: Work, folder: Path) -> Work:
    """The same with the contents of its inputs' files; blocks."""
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


def refused(work: Work, error: Exception) -> Work:
    """In place of one that cannot be sent: its runs fail with the reason."""
    why = f"the task could not be sent to its runner: {type(error).__name__}: {ascii(str(error)[:500])[1:-1]}"
    return Work(
        ticket=work.ticket,
        batch="",
        task="",
        runs=work.runs,
        attempt=work.attempt,
        call=f"{__name__}:fail",
        args={"why": why},
    )


def sendable(work: Work) -> Work:
    """The same, or one that fails with the reason why this cannot be encoded."""
    try:
        frames([Bundle([work])])
    except Exception as error:  # noqa: BLE001  # whatever encoding raises
        return refused(work, error)
    return work


def fail(why: str) -> Any:
    """What a refused task does."""
    raise RuntimeError(why)
