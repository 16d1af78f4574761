"""How a conductor gives itself up: its last words to the governor, then its exit, whatever its threads are doing."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.errors import ConductorError, ExitCode
from governor.messages import ConductorFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.conductors.conductor import Link

FAREWELL_SECONDS: Final = 5.0

log = logs.get_logger()


class Farewell:
    """`say` begins it, once; `leave` ends the process (a test passes its own)."""

    def __init__(self, *, link: Link, leave: Callable[[int], object] = os._exit) -> None:
        self.leave = leave
        self._link = link
        self._task: asyncio.Task[None] | None = None

    def say(self, reason: str) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._go(reason), name="conductor.farewell")

    async def _go(self, reason: str) -> None:
        log.error("conductor.gives_up", reason=reason)
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._link.report(ConductorFailed(reason=reason))
        except (TimeoutError, ConductorError) as error:
            log.warning("conductor.farewell_unheard", seconds=FAREWELL_SECONDS, error=str(error))
        self.leave(ExitCode.RUN_ENDED_BADLY)
