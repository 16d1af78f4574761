"""Hands queued runs to free slots, one after the other."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.daemon.damage import UNREADABLE, damage_in
from governor.errors import TryAgain
from governor.runs.assignment import Assignment
from governor.runs.services import with_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from governor.daemon.run_queue import RunQueue
    from governor.journal.journal import Journal
    from governor.runs.assignment import Waiting
    from governor.runs.run_governor import RunGovernor

ASSIGN_AGAIN_SECONDS: Final = 5.0
"""Seconds until the next attempt, after a slot could not begin a run (because of a full disk, for example)."""

log = logs.get_logger()


class Dispatcher:
    """`may_begin`: whether any run may begin now. `damaged` gets the runs that can't be read, and why."""

    def __init__(self, queue: RunQueue, *, damaged: dict[str, str], may_begin: Callable[[], bool]) -> None:
        self._queue = queue
        self._damaged = damaged
        self._may_begin = may_begin
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """A slot or a queued run may be available."""
        self._wake.set()

    async def run(self, governors: Sequence[RunGovernor], journal: Journal) -> None:
        """Raises JournalError."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            for governor in governors:
                if not self._may_assign(governor):
                    continue
                await self._queue.settle()
                assignment = await take(self._queue, journal, damaged=self._damaged)
                if assignment is None:
                    continue
                if self._may_assign(governor):  # still: the journal was read meanwhile
                    await self._assign(governor, assignment)
                else:
                    self._queue.put_back(assignment)

    def _may_assign(self, governor: RunGovernor) -> bool:
        return self._may_begin() and governor.is_free

    async def _assign(self, governor: RunGovernor, assignment: Assignment) -> None:
        try:
            await governor.assign(assignment)
        except (TryAgain, OSError) as error:
            log.warning("run.not_assigned", run=assignment.uid, slot=governor.uid, reason=str(error))
            self._queue.put_back(assignment)
            asyncio.get_running_loop().call_later(ASSIGN_AGAIN_SECONDS, self.wake)


async def take(queue: RunQueue, journal: Journal, *, damaged: dict[str, str]) -> Assignment | None:
    """Takes the first run whose run file can be read; None if there is none. It is read while the run still waits. Those
    before it are `damaged`. Raises JournalError.
    """
    while (waiting := queue.first()) is not None:
        found = await journal.read(partial(_read, journal, waiting))
        now = queue.find(waiting.uid)
        if now is None or not queue.may_begin(now):  # it was aborted or paused meanwhile
            continue
        queue.remove(waiting.uid)
        if not isinstance(found, str):
            return found
        damaged[waiting.uid] = found
        log.error("run.damaged", run=waiting.uid, reason=found)
    return None


def _read(journal: Journal, waiting: Waiting) -> Assignment | str:
    """Returns the damage of a run that can't be read. Blocks."""
    row = journal.run(waiting.uid)
    if row is None or row.damage:
        return "runs: its row is gone" if row is None else row.damage
    try:
        return with_ports(Assignment.of(row, waiting))
    except UNREADABLE as error:
        return damage_in(error)
