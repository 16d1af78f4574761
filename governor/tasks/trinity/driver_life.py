"""The life of a scheduler's driver: it is opened and closed by turns, and a stop ends an opening."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from governor.tasks.driver import Driver


class DriverLife:
    """`turn` is held during a start or stop."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._opening: asyncio.Task[Driver] | None = None

    async def open(self, opening: Coroutine[Any, Any, Driver], *, stop_timeout: float) -> Driver:
        """A driver with at least one runner, whole or not at all. Raises ConductorError, also when a stop came first."""
        self._opening = asyncio.create_task(opening, name="scheduler.open")
        try:
            driver = await self._opening
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is not None and me.cancelling():
                raise
            raise ConductorError("the scheduler was stopped before it had started") from None
        finally:
            self._opening = None
        if not driver.engine.plain_slots():
            await driver.close(seconds=stop_timeout)
            raise ConductorError("no runner can be started on Ray; its log says why")
        return driver

    async def begin_stop(self, seconds: float) -> bool:
        """Ends an opening and takes the turn, which its caller releases. False: it did not come within `seconds`."""
        if self._opening is not None:
            self._opening.cancel()
        try:
            async with asyncio.timeout(seconds):
                return await self.turn.acquire()
        except TimeoutError:
            return False
