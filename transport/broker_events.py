"""What a broker tells of itself: events with a dotted name and data, for a log."""

from __future__ import annotations

import logging
from typing import Any, Final, Protocol

import msgspec

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
