"""What a watch of a run gives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from governor.errors import UsageError
from governor.messages import RunEvent, WatchEnd

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable


class Watching:
    """The events of one run as they come: an async iterator of `RunEvent`. A wait for the next one may be cancelled, and none is lost.

    Attributes:
        end: set after the last event; ``end.outcome`` is the outcome of the run, or ``interrupted`` when its daemon went down
            and did not come back.
    """

    def __init__(
        self, messages: Callable[[int], AsyncGenerator[RunEvent | WatchEnd, None]], after: int
    ) -> None:
        """`messages` gives those behind the event with this number."""
        self._open = messages
        self._after = after
        self._messages = messages(after)
        self._is_waiting = False
        self.end: WatchEnd | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RunEvent:
        if self._is_waiting:
            raise UsageError(
                "another task waits for the next event of this watch: each task needs one of its own"
            )
        self._is_waiting = True
        try:
            message = await anext(self._messages)
        except asyncio.CancelledError:
            self._messages = self._open(self._after)  # a generator ends with it
            raise
        finally:
            self._is_waiting = False
        if isinstance(message, WatchEnd):
            self.end = message
            raise StopAsyncIteration
        self._after = message.seq
        return message

    async def aclose(self) -> None:
        """Call it when you leave the events early."""
        await self._messages.aclose()
