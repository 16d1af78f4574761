"""What a broker tells of itself: events with a dotted name and data, for a log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from transport.broker_state import Counters

WARNINGS: Final = frozenset(
    {
        "broker.connections_refused",
        "broker.connections_taken_again",
        "broker.few_connections",
        "broker.not_permitted",
        "broker.peer_refused",
    }
)


class OnEvent(Protocol):
    """Logs an event: a dotted name and data."""

    def __call__(self, name: str, **data: Any) -> None: ...


def to_logging(name: str, **data: Any) -> None:
    """A warning is one line of JSON, so that it also reaches the stderr of a process that has not configured logging."""
    if name in WARNINGS:
        line = msgspec.json.encode({"event": name, "level": "warning", **data}).decode()
        logging.getLogger("transport.broker").warning("%s", line)
    else:
        logging.getLogger("transport.broker").info(name, extra={"data": data})


class RefusalLog:
    """Tells what access control has refused since it told the last time."""

    def __init__(self, on_event: OnEvent, counters: Counters) -> None:
        self._on_event = on_event
        self._counters = counters
        self._told = (0, 0)

    def tell(self) -> None:
        counters = self._counters
        refused = counters.not_permitted, counters.registrations_refused
        if refused == self._told:
            return
        requests, registrations = (now - before for now, before in zip(refused, self._told, strict=True))
        self._told = refused
        self._on_event("broker.not_permitted", requests=requests, registrations=registrations)
