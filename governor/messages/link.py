"""`Link`: the connection through which a conductor reports; and `RecordingLink`, which records reports, for tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from governor.messages.conductor import Acknowledged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.messages.conductor import ConductorEvent
    from transport.client import Client

E = TypeVar("E")


class Link(Protocol):
    """Sends the events of a conductor to the governor."""

    client: Client

    async def report(self, event: ConductorEvent) -> Acknowledged:
        """Returns when the event is in the governor's journal, however long that takes."""

    async def report_all(self, events: Sequence[ConductorEvent]) -> Acknowledged:
        """As `report` for several, in their order; at least one."""


class RecordingLink:
    """A `Link` without a governor: records what was reported. The seam for tests of conductors."""

    def __init__(self, client: Client | None = None, *, flow: str = "CONTINUE") -> None:
        self.client: Client = client  # type: ignore[assignment]  # a test without a broker has none
        self.events: list[ConductorEvent] = []
        self.flow = flow
        self._arrived = asyncio.Condition()

    async def report(self, event: ConductorEvent) -> Acknowledged:
        async with self._arrived:
            self.events.append(event)
            self._arrived.notify_all()
        return msgspec.convert({"type": "Acknowledged", "flow": self.flow}, Acknowledged)

    async def report_all(self, events: Sequence[ConductorEvent]) -> Acknowledged:
        return [await self.report(event) for event in events][-1]

    async def next(self, kind: type[E], *, after: int = 0) -> E:
        """Waits for the first event of this kind at or behind position `after`."""

        def found() -> list[E]:
            return [event for event in self.events[after:] if isinstance(event, kind)]

        async with self._arrived:
            await self._arrived.wait_for(found)
        return found()[0]
