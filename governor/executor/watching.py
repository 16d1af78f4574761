"""What a watch of a run gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from governor.messages import RunEvent, WatchEnd

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Watching:
    """The events of one run as they come: an async iterator of `RunEvent`.

    Attributes:
        end: set after the last event; ``end.outcome`` is the outcome of the run, or ``interrupted`` when its daemon went down
            and did not come back.
    """

    def __init__(self, messages: AsyncGenerator[RunEvent | WatchEnd, None]) -> None:
        self._messages = messages
        self.end: WatchEnd | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RunEvent:
        message = await anext(self._messages)
        if isinstance(message, WatchEnd):
            self.end = message
            raise StopAsyncIteration
        return message

    async def aclose(self) -> None:
        """Call it when you leave the events early."""
        await self._messages.aclose()
