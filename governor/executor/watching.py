"""What a watch of a run gives."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

from governor.errors import UsageError
from governor.messages import RunEvent, WatchEnd

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Watching:
    """The events of one run as they come: an async iterator of `RunEvent`. A wait for the next one may be cancelled, and none is lost.

    Attributes:
        end: set after the last event; ``end.outcome`` is the outcome of the run, or ``interrupted`` when its daemon went down
            and did not come back.
    """

    def __init__(self, messages: AsyncGenerator[list[RunEvent | WatchEnd], None]) -> None:
        self._messages = messages
        self._come = deque[RunEvent | WatchEnd]()
        self._next: asyncio.Task[list[RunEvent | WatchEnd]] | None = None
        """The wait for the next ones, which goes on when its caller is cancelled: a generator would end with it."""
        self._is_waiting = False
        self.end: WatchEnd | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RunEvent:
        while not self._come:
            self._come.extend(await self._wait())
        message = self._come.popleft()
        if isinstance(message, WatchEnd):
            self.end = message
            raise StopAsyncIteration
        return message

    async def _wait(self) -> list[RunEvent | WatchEnd]:
        if self._is_waiting:
            raise UsageError(
                "another task waits for the next event of this watch: each task needs one of its own"
            )
        self._is_waiting = True
        if self._next is None:
            self._next = asyncio.ensure_future(self._messages.__anext__())
        try:
            await asyncio.wait({self._next})
        finally:
            self._is_waiting = False
        waited, self._next = self._next, None
        return waited.result()

    async def aclose(self) -> None:
        """Call it when you leave the events early."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self._messages.aclose()
