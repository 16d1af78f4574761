"""Retention: removes ended runs, so that journal and files stay within bounds.

Rules:
1. A run is kept if either bound keeps it: the newest `runs`, and those that ended within `days`. Without bounds all are kept.
2. A run is marked first: from then on it can't be found, only its key stays known. Then its files are removed, then its
   rows, some at a time, and at last the journal's free pages are returned to the disk. This is completed after a crash.
3. A request is answered when the runs are marked.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.errors import UsageError
from governor.messages import Pruned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from governor.journal.journal import Journal

ROWS: Final = 2000
"""Deleted in one transaction: a run in work waits for its acknowledgement meanwhile."""
PAGES: Final = 100
"""Returned in one transaction. SQLite searches the list of all free pages for each: so this is done after each run."""
DAY_SECONDS: Final = 86400.0
RECHECK_SECONDS: Final = 3600.0
"""Interval of checks without any event, for `days`."""

log = logs.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """The bounds; None: no bound. Raises UsageError for negative ones."""

    runs: int | None = None
    days: float | None = None

    def __post_init__(self) -> None:
        if not all(bound is None or bound >= 0 for bound in (self.runs, self.days)):
            raise UsageError(f"runs and days to keep are counted from 0 on, not {self.runs}, {self.days}")

    @property
    def is_all(self) -> bool:
        return self.runs is None and self.days is None


def choose(ended: Iterable[tuple[str, float]], *, keep: RetentionPolicy, now: float) -> list[str]:
    """The uids to prune, oldest first; `ended` are runs (uid, end time), newest first."""
    if keep.is_all:
        return []
    since = now - keep.days * DAY_SECONDS if keep.days is not None else float("inf")
    return [uid for uid, at in islice(ended, keep.runs or 0, None) if at < since][::-1]


class Pruner:
    def __init__(self, journal: Journal, runs_folder: Path) -> None:
        self._journal = journal
        self._runs = runs_folder
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """A run has ended, or the bounds have changed."""
        self._wake.set()

    async def serve(self, keep: Callable[[], RetentionPolicy]) -> None:
        """Prunes by the bounds until it is cancelled; raises JournalError."""
        while True:
            self._wake.clear()
            await self._mark(self._choose(keep()))
            await self.finish()
            try:
                async with asyncio.timeout(RECHECK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def prune(self, keep: RetentionPolicy, *, dry_run: bool = False) -> Pruned:
        """Marks the runs to prune; `finish` or `serve` removes them. Raises JournalError."""
        chosen = self._choose(keep)
        sizes = await asyncio.to_thread(lambda: {uid: _size(self._runs / uid) for uid in chosen})
        if not dry_run:
            chosen = await self._mark(chosen)
            self.wake()
        return Pruned(uids=tuple(chosen), bytes=sum(sizes[uid] for uid in chosen), dry_run=dry_run)

    async def finish(self) -> None:
        """Removes all marked runs, and returns their pages to the disk. Raises JournalError."""
        journal = self._journal
        await self._give_back()
        for uid in journal.marked():
            await self._remove(uid)
            await self._give_back()
        await asyncio.to_thread(journal.checkpoint)

    def _choose(self, keep: RetentionPolicy) -> list[str]:
        return choose(self._journal.ended(), keep=keep, now=time.time())

    async def _mark(self, chosen: list[str]) -> list[str]:
        if not chosen:
            return []
        return await self._journal.write(lambda transaction: transaction.mark_pruned(chosen))

    async def _give_back(self) -> None:
        while await self._journal.write(lambda transaction: transaction.give_back(PAGES)):
            pass

    async def _remove(self, uid: str) -> None:
        journal, folder = self._journal, self._runs / uid
        began, events = time.monotonic(), journal.last_event(uid)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        while await journal.write(lambda transaction: transaction.remove_rows(uid, ROWS)):
            pass
        if folder.exists():
            log.warning("run.not_pruned", run=uid, folder=str(folder), reason="its files can't be removed")
            return
        await journal.write(lambda transaction: transaction.removed(uid))
        log.info("run.pruned", run=uid, events=events, seconds=round(time.monotonic() - began, 3))


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


def _size(folder: Path) -> int:
    """Bytes on the disk that removing a folder frees: without files that another run has, too."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(path, name))  # noqa: PTH118  # of a large tree
            except OSError:  # it is gone already
                continue
            total += status.st_blocks * 512 if status.st_nlink == 1 else 0
    return total
