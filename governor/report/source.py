"""Where the data of a report come from: a daemon that answers, or the journal of one that is gone.

Rule: nothing is changed; a journal is opened read-only, also beside the daemon that writes it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from governor.daemon.state_lock import is_served
from governor.errors import JournalError, NoSuchRun
from governor.journal import schema
from governor.journal.run_records import RunRecords
from governor.locations import JOURNAL
from governor.messages import ReadOutput, RunResult
from governor.output import reader
from governor.runs.assignment import Assignment, Waiting
from governor.runs.record import failures, result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from governor.executor import Executor
    from governor.journal.runs_table import RunRow
    from governor.messages import FailureList, OutputPage, RunCurves, RunEvent, RunStatus

    T = Any


STEPS_BYTES: Final = 256 << 20


class Source(Protocol):
    """Each method raises GovernorError, NoSuchRun for an unknown run."""

    async def status(self, uid: str) -> RunStatus | None:
        """None where no daemon knows it."""

    async def result(self, uid: str) -> RunResult:
        """Also so far."""

    async def failures(self, uid: str, *, after: int = 0, limit: int = 20) -> FailureList: ...

    async def curves(self, uid: str, metric: str) -> RunCurves: ...

    def events(self, uid: str, kinds: Sequence[str]) -> AsyncIterator[RunEvent]: ...

    def output(self, asked: ReadOutput) -> AsyncIterator[OutputPage]: ...


class DaemonSource:
    """A daemon, by its client."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def status(self, uid: str) -> RunStatus | None:
        return next(iter((await self._executor.status(uid)).runs), None)

    async def result(self, uid: str) -> RunResult:
        """With a folder on this machine: of a daemon elsewhere a copy, without large files of steps."""
        found = await self._executor.result(uid, so_far=True)
        if self._executor.keys is None:
            return found
        folder = await self._executor.files(found.uid, most=STEPS_BYTES)
        return msgspec.structs.replace(found, folder=str(folder))

    async def failures(self, uid: str, *, after: int = 0, limit: int = 20) -> FailureList:
        return await self._executor.failures(uid, after=after, limit=limit)

    async def curves(self, uid: str, metric: str) -> RunCurves:
        return await self._executor.curves(uid, metric)

    async def events(self, uid: str, kinds: Sequence[str]) -> AsyncIterator[RunEvent]:
        async for event in self._executor.watch(uid, follow=False, kinds=tuple(kinds)):
            yield event

    async def output(self, asked: ReadOutput) -> AsyncIterator[OutputPage]:
        async for page in self._executor.output_pages(asked, follow=False):
            yield page


class _Records(RunRecords):
    def __init__(self, path: Path) -> None:
        self._path = path
        self.reserved = set()

    def _rows(self, question: str, parameters: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        try:
            with closing(schema.connect_read_only(self._path)) as connection:
                yield from connection.execute(question, parameters)
        except sqlite3.Error as error:
            if not self._path.exists():
                raise JournalError(
                    f"there is no journal {self._path}: of this run only files are left"
                ) from None
            raise JournalError(f"the journal {self._path} cannot be read: {error}") from error


class JournalSource:
    """The journal of the state folder of a run, by the folder of that run. If the journal no longer has it, what is left in `result.json`."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder
        self._records = _Records(run_folder.parents[1] / JOURNAL)

    async def status(self, uid: str) -> RunStatus | None:  # noqa: ARG002  # no daemon has a state of it
        return None

    async def result(self, uid: str) -> RunResult:
        return await asyncio.to_thread(self._result, uid)

    def _result(self, uid: str) -> RunResult:
        try:
            row = self._row(uid)
        except (NoSuchRun, JournalError) as error:
            return self._left(error)
        found = result.whole_result(self._records, row.uid, self._folder)
        if found is not None:
            return found
        assignment = Assignment.of(row, Waiting(uid=row.uid))
        return result.build_result(
            journal=self._records,
            assignment=assignment,
            outcome="in work",
            reason="in work" if is_served(self._folder.parents[1]) else "interrupted",
            folder=self._folder,
            seconds=row.seconds if row.seconds is not None else time.time() - row.submitted_at,
        )

    def _left(self, instead: NoSuchRun | JournalError) -> RunResult:
        """Raises `instead` where nothing is left."""
        try:
            return msgspec.json.decode((self._folder / "result.json").read_bytes(), type=RunResult)
        except (OSError, msgspec.MsgspecError):
            raise instead from None

    def _row(self, uid: str) -> RunRow:
        row = self._records.run(self._folder.name)
        if row is None:
            raise NoSuchRun(uid)
        return row

    async def failures(self, uid: str, *, after: int = 0, limit: int = 20) -> FailureList:
        return await asyncio.to_thread(
            failures.page, self._records, self._row(uid).uid, phase=None, after=after, limit=limit
        )

    async def curves(self, uid: str, metric: str) -> RunCurves:
        return await asyncio.to_thread(lambda: result.curves_of(self._records, self._row(uid), metric=metric))

    async def events(self, uid: str, kinds: Sequence[str]) -> AsyncIterator[RunEvent]:
        uid = self._row(uid).uid
        read: Callable[[], list[RunEvent]] = lambda: self._records.events_of(uid, tuple(kinds))  # noqa: E731
        for event in await asyncio.to_thread(read):
            yield event

    async def output(self, asked: ReadOutput) -> AsyncIterator[OutputPage]:
        folder = reader.folder_of(self._folder)
        conductors = (
            None if asked.conductor is None else reader.conductors_named(folder, asked.conductor, list)
        )
        while True:
            page = await asyncio.to_thread(reader.page_of, folder, asked, conductors)
            yield page
            if not page.more:
                return
            asked = msgspec.structs.replace(asked, cursor=page.cursor)
