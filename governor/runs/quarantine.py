"""Who could not be killed when its run ended is waited for, for as long as it lives: its slot takes no run meanwhile.

A process in uninterruptible sleep, or whose death a tracer holds up, dies with SIGKILL pending as soon as it may.
"""

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
    """Of one slot. `post` takes the events that end it."""

    def __init__(self, slot: str, post: Callable[[Event], None]) -> None:
        self._slot = slot
        self._post = post
        self._deaths: set[asyncio.Task[None]] = set()

    def begin(
        self, run: str, pids: Collection[int], deaths: Mapping[asyncio.Task[None], Collection[int]]
    ) -> None:
        """`deaths`: tasks that end when the processes of their pids are gone; those of `pids` that none has are gone."""
        log.error("slot.quarantined", slot=self._slot, run=run, pids=list(pids))
        awaited = {pid for of_task in deaths.values() for pid in of_task}
        if already := tuple(pid for pid in pids if pid not in awaited):
            self._gone(run, already)
        for death, of_task in deaths.items():
            self._deaths.add(death)
            death.add_done_callback(partial(self._died, run, tuple(of_task)))

    async def aclose(self) -> None:
        """Waits for nobody any more."""
        for death in self._deaths:
            death.cancel()
        await asyncio.gather(*self._deaths, return_exceptions=True)

    def _died(self, run: str, pids: tuple[int, ...], death: asyncio.Task[None]) -> None:
        self._deaths.discard(death)
        if not death.cancelled() and death.exception() is None:
            self._gone(run, pids)

    def _gone(self, run: str, pids: tuple[int, ...]) -> None:
        self._post(ProcessesGone(run=run, at=time.monotonic(), pids=pids))
