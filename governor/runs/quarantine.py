"""What keeps a slot from accepting runs: processes of an earlier one that could not be killed."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from governor import logs
from states.events import Event, ProcessesGone

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

log = logs.get_logger()


class Quarantine:
    """If a process survives SIGKILL when its run ends, the slot accepts no new run until that process is gone. `post`
    receives the events that report it.

    A process in uninterruptible sleep, or whose exit a tracer delays, dies of the pending SIGKILL as soon as it can.
    """

    def __init__(self, slot: str, post: Callable[[Event], object]) -> None:
        self._slot = slot
        self._post = post
        self._exits: set[asyncio.Task[None]] = set()

    def begin(
        self, run: str, pids: Collection[int], exits: Mapping[asyncio.Task[None], Collection[int]]
    ) -> None:
        """`exits`: tasks that end when the processes of their pids are gone; those of `pids` that no task has are
        gone already.
        """
        log.error("slot.quarantined", slot=self._slot, run=run, pids=list(pids))
        awaited = {pid for of_task in exits.values() for pid in of_task}
        if already := tuple(pid for pid in pids if pid not in awaited):
            self._report_gone(run, already)
        for exit_task, of_task in exits.items():
            self._exits.add(exit_task)
            exit_task.add_done_callback(partial(self._exited, run, tuple(of_task)))

    async def aclose(self) -> None:
        """Stops waiting."""
        for exit_task in self._exits:
            exit_task.cancel()
        await asyncio.gather(*self._exits, return_exceptions=True)

    def _exited(self, run: str, pids: tuple[int, ...], exit_task: asyncio.Task[None]) -> None:
        self._exits.discard(exit_task)
        if not exit_task.cancelled() and exit_task.exception() is None:
            self._report_gone(run, pids)

    def _report_gone(self, run: str, pids: tuple[int, ...]) -> None:
        self._post(ProcessesGone(run=run, at=time.monotonic(), pids=pids))
