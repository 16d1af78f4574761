"""The broker's process: its log is the daemon's, also what its libraries print."""

from __future__ import annotations

from typing import Any

import msgspec

from governor import logs
from governor.processes.raw_output import redirected
from transport import broker
from transport.broker_events import WARNINGS

TARGET = "governor.daemon.broker_process:main"

log = logs.get_logger()


class BrokerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told: `settings` of `BrokerSettings.encode`, where raw text goes, and how lines look."""

    settings: bytes
    raw_output: str
    log_format: logs.LogFormat = "json"
    log_level: str = "info"

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


async def main(payload: bytes) -> None:
    """Runs until SIGTERM."""
    order = msgspec.msgpack.decode(payload, type=BrokerOrder)
    stream = redirected(order.raw_output)
    logs.configure(log_format=order.log_format, level=order.log_level, stream=stream, process="broker")
    logs.capture_strays(order.log_format)
    await broker.main(order.settings, on_event=_on_event)


def _on_event(name: str, **data: Any) -> None:
    (log.warning if name in WARNINGS else log.debug)(name, **data)
