"""Retention: removes ended runs, so that journal and files stay within bounds.

Rules:
1. A run is kept if either bound keeps it: the newest `runs`, and those that ended within `days`. Without bounds all are kept.
2. A run is marked first: from then on it can't be found, only its key stays known. Then its folder gets another name, so
   that none is seen half empty, and is removed; then its rows, and at last the journal's free pages are returned to the
   disk. This is completed after a crash.
3. A request is answered when the runs are marked.
4. Whoever works meanwhile has the disk and the journal's writer for most of the time: each step is short, and a pause
   follows that is `rest` times as long. Files are removed in a thread of its own.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from governor import logs
from governor.errors import UsageError
from governor.files import sync_to_disk
from governor.journal.removal import Removal, size
from governor.messages import Pruned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from governor.journal.journal import Journal
    from governor.journal.runs_table import RunsTable
    from governor.journal.tables import Transaction

T = TypeVar("T")
MARKS: Final = 100
"""Runs that are marked in one transaction."""
ROWS: Final = 2000
"""Deleted in one transaction: a run in work waits for its acknowledgement meanwhile."""
PAGES: Final = 1000
"""Returned in one transaction. SQLite searches the list of all free pages for each: so this is done after each run."""
DAY_SECONDS: Final = 86400.0
MOST: Final = 1_000_000_000
RECHECK_SECONDS: Final = 3600.0
"""Interval of checks without any event, for `days`."""
REST: Final = 3.0
"""A quarter of the time is for removing."""

log = logs.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """The bounds; None: no bound. Raises UsageError for negative ones, and for those above `MOST`."""

    runs: int | None = None
    days: float | None = None

    def __post_init__(self) -> None:
        for what, bound in (("runs", self.runs), ("days", self.days)):
            if bound is not None and not 0 <= bound <= MOST:
                raise UsageError(f"{what} to keep are from 0 to {MOST:,}, not {bound}")

    @property
    def is_all(self) -> bool:
        return self.runs is None and self.days is None


def choose(runs: RunsTable, *, keep: RetentionPolicy, now: float) -> list[str]:
    """The uids to prune, oldest first. Blocks."""
    if keep.is_all:
        return []
    since = now - keep.days * DAY_SECONDS if keep.days is not None else float("inf")
    return runs.ended(behind=keep.runs or 0, before=since)


class Pruner:
    """`rest`: the length of each pause, by the length of the work before it."""

    def __init__(self, journal: Journal, runs_folder: Path, *, rest: float = REST) -> None:
        self._journal = journal
        self._runs = runs_folder
        self._rest = rest
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "retention")

    def wake(self) -> None:
        """A run has ended, or the bounds have changed."""
        self._wake.set()

    async def serve(self, keep: Callable[[], RetentionPolicy]) -> None:
        """Prunes by the bounds until it is cancelled; raises JournalError."""
        await self.finish()
        while True:
            self._wake.clear()
            await self._mark(await self._choose(keep()))
            if await self._journal.read(self._journal.marked):
                await self.finish()
            with suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_SECONDS):
                    await self._wake.wait()

    async def prune(self, keep: RetentionPolicy, *, dry_run: bool = False) -> Pruned:
        """Marks the runs to prune; `finish` or `serve` removes them. Raises JournalError."""
        chosen = await self._choose(keep)
        sizes = await self._in_thread(lambda: {uid: size(self._runs / uid) for uid in chosen})
        if not dry_run:
            chosen = await self._mark(chosen)
            self.wake()
        return Pruned(uids=tuple(chosen), bytes=sum(sizes[uid] for uid in chosen), dry_run=dry_run)

    async def finish(self) -> None:
        """Removes all marked runs, and returns their pages to the disk. Raises JournalError."""
        journal = self._journal
        await self._write(lambda transaction: transaction.give_back(PAGES))
        for uid in await journal.read(journal.marked):
            await self._remove(uid)
            await self._write(lambda transaction: transaction.give_back(PAGES))
        await journal.read(journal.checkpoint)

    async def _choose(self, keep: RetentionPolicy) -> list[str]:
        return await self._journal.read(lambda: choose(self._journal, keep=keep, now=time.time()))

    async def _mark(self, chosen: list[str]) -> list[str]:
        marked: list[str] = []
        for start in range(0, len(chosen), MARKS):
            marked += await self._then_rest(self._mark_some(chosen[start : start + MARKS]))
        return marked

    async def _mark_some(self, uids: list[str]) -> list[str]:
        return await self._journal.write(lambda transaction: transaction.mark_pruned(uids))

    async def _remove(self, uid: str) -> None:
        folder = self._runs / uid
        began = time.monotonic()
        events = await self._journal.read(partial(self._journal.last_event, uid))
        files = freed = 0
        for path in await self._in_thread(partial(_put_aside, folder)):
            removal = Removal(path)
            while await self._then_rest(self._in_thread(removal.step)):
                pass
            files, freed = files + removal.files, freed + removal.bytes
            if removal.left:
                reason = "its files can't be removed"
                log.warning(
                    "run.not_pruned", run=uid, folder=str(path), files=files, bytes=freed, reason=reason
                )
                return
        await self._in_thread(self._sync)
        await self._write(lambda transaction: transaction.remove_rows(uid, ROWS))
        seconds = round(time.monotonic() - began, 3)
        log.info("run.pruned", run=uid, events=events, files=files, bytes=freed, seconds=seconds)

    def _sync(self) -> None:
        """So that no files come back after a loss of power of which nobody knows."""
        with suppress(OSError):  # there is no folder, for example
            sync_to_disk(self._runs)

    async def _write(self, change: Callable[[Transaction], bool]) -> None:
        """Makes the change again and again, until it says that nothing more is to be done."""
        while await self._then_rest(self._journal.write(change)):
            pass

    async def _then_rest(self, work: Awaitable[T]) -> T:
        began = time.monotonic()
        done = await work
        await asyncio.sleep((time.monotonic() - began) * self._rest)
        return done

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _put_aside(folder: Path) -> list[Path]:
    """Gives the folder of a run another name; returns what is left of it now or since an earlier start."""
    aside = folder.with_name(f".{folder.name}.pruned")
    with suppress(OSError):  # it is gone, or must be removed where it is
        folder.rename(aside)
    return [path for path in (aside, folder) if path.exists()]


def requested_policy(
    keep_runs: int | None, keep_days: float | None, *, otherwise: RetentionPolicy
) -> RetentionPolicy:
    """The bounds of a request, else those of the configuration. Raises UsageError where there are none."""
    keep = RetentionPolicy(runs=keep_runs, days=keep_days)
    if keep.is_all and otherwise.is_all:
        raise UsageError(
            "nothing says which runs to keep: give --keep-runs or --keep-days, or set keep_runs, keep_days in the "
            "configuration"
        )
    return otherwise if keep.is_all else keep
