"""The slots of the daemon, and how queued runs get to them, one after the other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.daemon.damage import UNREADABLE, damage_in
from governor.daemon.sharing.capacity import VISIBLE
from governor.errors import TryAgain
from governor.runs.assignment import Assignment
from governor.runs.run_governor import RunGovernor
from governor.runs.services import with_ports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from governor.daemon.run_queue import RunQueue
    from governor.daemon.sharing.capacity import Machine
    from governor.errors import JournalError
    from governor.journal.journal import Journal
    from governor.runs.active_run import RunContext
    from governor.runs.assignment import Waiting

ASSIGN_AGAIN_SECONDS: Final = 5.0
"""Seconds until the next attempt, after a slot could not begin a run (because of a full disk, for example)."""

log = logs.get_logger()


class Slots:
    """`governors` are those that there are, `govern` has one handle its events; `changed` and `failed` are as of `RunGovernor.attach`. A slot
    that is one too many ends with its run.
    """

    def __init__(
        self,
        governors: list[RunGovernor],
        context: RunContext,
        *,
        govern: Callable[[RunGovernor], Awaitable[None]],
        changed: Callable[[RunGovernor], None],
        failed: Callable[[JournalError], None],
    ) -> None:
        self.governors = governors
        self._context, self._govern, self._changed, self._failed = context, govern, changed, failed
        self._tasks: dict[RunGovernor, asyncio.Task[None]] = {}
        self._leaving: set[RunGovernor] = set()
        self._has_begun = False
        for governor in governors:
            self._attach(governor)

    def _attach(self, governor: RunGovernor) -> None:
        governor.attach(self._context, on_change=self._changed, on_journal_failure=self._failed)

    def begin(self) -> None:
        """All of them take runs from now on, also further ones."""
        self._has_begun = True
        for governor in self.governors:
            if governor not in self._tasks:
                self._tasks[governor] = asyncio.create_task(self._fill(governor), name=governor.uid)

    def resize(self, number: int) -> None:
        """More of them begin at once. Of those that are too many free ones end at once, the others when their run has ended."""
        staying = [governor for governor in self.governors if governor not in self._leaving]
        at_work = [each for each in self.governors if each in self._leaving and each.experiment_run_id]
        for governor in at_work[: max(number - len(staying), 0)]:
            self._leaving.discard(governor)
            staying.append(governor)
        free = (f"slot-{index}" for index in count())
        for _ in range(number - len(staying)):
            used = {governor.uid for governor in self.governors}
            governor = RunGovernor(
                self._context.worker_endpoint, next(name for name in free if name not in used)
            )
            self._attach(governor)
            self.governors.append(governor)
        if self._has_begun:
            self.begin()
        by_need = sorted(staying, key=lambda governor: governor.is_free)
        self._leaving.update(by_need[number:])
        for governor in by_need[number:]:
            self.end_if_free(governor)

    def is_leaving(self, governor: RunGovernor) -> bool:
        return governor in self._leaving

    def end_if_free(self, governor: RunGovernor) -> None:
        """Ends a slot that is one too many."""
        if governor in self._leaving and governor.is_free:
            governor.post_stop("the daemon has fewer slots")

    async def stop(self, reason: str, *, urgent: bool, grace: float) -> None:
        """Interrupts all runs. Returns when nothing is left of them; `grace` is seconds."""
        for governor in self.governors:
            governor.post_stop(reason, urgent=urgent)
        if not (tasks := [*self._tasks.values()]):
            return
        _, late = await asyncio.wait(tasks, timeout=grace)
        if late:
            for governor in self.governors:
                governor.post_stop(f"stop_grace of {grace:g} s is over", urgent=True)
            await asyncio.wait(tasks)

    async def _fill(self, governor: RunGovernor) -> None:
        await self._govern(governor)
        if governor in self._leaving:
            self._leaving.discard(governor)
            self.governors.remove(governor)
            del self._tasks[governor]
            log.info("slot.ended", slot=governor.uid)


class Dispatcher:
    """`may_begin`: whether any run may begin now. `damaged` gets the runs that can't be read, and why."""

    def __init__(
        self,
        queue: RunQueue,
        machine: Machine,
        *,
        damaged: dict[str, str],
        may_begin: Callable[[], bool],
    ) -> None:
        self._queue = queue
        self._machine = machine
        self._damaged = damaged
        self._may_begin = may_begin
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """A slot or a queued run may be available."""
        self._wake.set()

    async def run(self, slots: Slots, journal: Journal) -> None:
        """Raises JournalError."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            for governor in [*slots.governors]:
                if slots.is_leaving(governor) or not self._may_assign(governor):
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
        if assignment.requires is not None:
            gpus = self._machine.gpus_for(assignment)
            variables = {**assignment.variables, VISIBLE: ",".join(gpus)}
            assignment = replace(assignment, gpus=gpus, variables=variables)
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
