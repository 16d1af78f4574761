"""Whether a server is there, by a TCP connection that says nothing: its end, and no new one to be had, is the loss."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from governor.tasks.exchange.wire import keep_alive

RECONNECT_TRIES: Final = 3
RECONNECT_SECONDS: Final = 0.5
PROBE_SECONDS: Final = 1.0


async def _connected(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that is ended by the silence of the other machine. Raises OSError, TimeoutError among them."""
    async with asyncio.timeout(PROBE_SECONDS):
        reader, writer = await asyncio.open_connection(host, port)
    keep_alive(writer.get_extra_info("socket"))
    return reader, writer


async def answers(host: str, port: int) -> bool:
    """Whether somebody takes a connection there, within `PROBE_SECONDS`."""
    try:
        _, writer = await _connected(host, port)
    except OSError:
        return False
    writer.transport.abort()
    return True


async def ended(host: str, port: int, what: str) -> str:
    """Returns the reason when `what` listens there no more; until then it waits."""
    failures = 0
    while True:
        try:
            reader, writer = await _connected(host, port)
        except OSError as error:
            failures += 1
            if failures >= RECONNECT_TRIES:
                return f"{what} at {host}:{port} is gone ({error.strerror or str(error) or 'no answer'})"
            await asyncio.sleep(RECONNECT_SECONDS)
            continue
        failures = 0
        try:
            with contextlib.suppress(OSError):
                while await reader.read(4096):
                    continue
        finally:
            writer.transport.abort()
        await asyncio.sleep(RECONNECT_SECONDS)  # a back-off: gRPC drops a silent connection now and then
