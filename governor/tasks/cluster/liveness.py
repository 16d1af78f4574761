"""Whether a server of Ray is there and answers: asked by those who have no Ray, or whose Ray hangs.

The kernel takes connections for a process that is stopped. So each connection opens as HTTP/2 does, below all tokens,
and what the server says then, whatever it is, is its sign of life. The end of a connection, and no new one to be had, is
its loss; so is a long silence. Ray closes a connection that asks nothing, and one that pings too often.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, TypeAlias

from governor.processes.silence import BEAT_SECONDS, SilenceTimer
from governor.tasks.protocol.wire import keep_alive

if TYPE_CHECKING:
    from collections.abc import Iterable

RECONNECT_TRIES: Final = 3
RECONNECT_SECONDS: Final = 0.5
CONNECT_SECONDS: Final = 1.0
HOLD_SECONDS: Final = 2.0
"""After which one that has answered is asked again."""
SILENT_SECONDS: Final = 10.0
"""A server that is busy may be late; this is taken for a standstill."""
GREETING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The preface and an empty SETTINGS frame (RFC 9113, 3.4); the other side has a SETTINGS frame to send at once."""

Server: TypeAlias = tuple[str, int, str]
"""Host, port, and what it is called."""


async def _open_greeted(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that is ended by the silence of the other machine. Raises OSError, TimeoutError among them."""
    async with asyncio.timeout(CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection(host, port)
    keep_alive(writer.get_extra_info("socket"))
    writer.write(GREETING)
    return reader, writer


async def _read_answer(reader: asyncio.StreamReader, silence: float) -> bytes | None:
    """What the server says: nothing, and it has ended the connection; None: it does neither for so many seconds."""
    loop = asyncio.get_running_loop()
    counted = SilenceTimer(loop.time())
    answer = asyncio.ensure_future(reader.read(4096))
    try:
        while not (await asyncio.wait({answer}, timeout=BEAT_SECONDS))[0]:
            if counted.passed(loop.time()) >= silence:
                return None
        return b"" if answer.exception() else answer.result()
    finally:
        answer.cancel()
        await asyncio.wait({answer})


async def answers(host: str, port: int, *, silence: float | None = None) -> bool:
    """Whether somebody listens there and answers within `silence` seconds; else within `SILENT_SECONDS`."""
    try:
        reader, writer = await _open_greeted(host, port)
    except OSError:
        return False
    try:
        answer = await _read_answer(reader, silence or SILENT_SECONDS)
    finally:
        writer.transport.abort()
    if answer is None:
        return False
    return bool(answer) or await _accepts(host, port)


async def _accepts(host: str, port: int) -> bool:
    """Whether who has ended a connection takes another one: it has not ended with it."""
    try:
        _, writer = await _open_greeted(host, port)
    except OSError:
        return False
    writer.transport.abort()
    return True


async def ended(host: str, port: int, what: str) -> str:
    """Returns the reason when `what` listens there no more, or answers no more; until then it waits."""
    failures = 0
    while True:
        try:
            reader, writer = await _open_greeted(host, port)
        except OSError as error:
            failures += 1
            if failures >= RECONNECT_TRIES:
                return f"{what} at {host}:{port} is gone ({error.strerror or str(error) or 'no answer'})"
            await asyncio.sleep(RECONNECT_SECONDS)
            continue
        failures = 0
        try:
            if await _read_answer(reader, SILENT_SECONDS) is None:
                return f"{what} at {host}:{port} is silent for {SILENT_SECONDS:g} s"
            with contextlib.suppress(OSError):  # TimeoutError among them
                async with asyncio.timeout(HOLD_SECONDS):
                    while await reader.read(4096):
                        continue
        finally:
            writer.transport.abort()
        await asyncio.sleep(RECONNECT_SECONDS)  # a back-off, should it close what it has just taken


async def first_ended(servers: Iterable[Server]) -> str:
    """As `ended`, for the first of them."""
    tasks = [asyncio.create_task(ended(*server), name=f"ray.watch.{server[2]}") for server in servers]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def all_answer(servers: Iterable[Server]) -> bool:
    """Whether each of them is there and answers."""
    return all(await asyncio.gather(*(answers(host, port) for host, port, _ in servers)))
