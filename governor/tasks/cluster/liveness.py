"""Health checks of Ray's servers, without Ray: for processes that do not import it, or whose Ray hangs.

The kernel accepts connections for a process that is stopped. So each connection opens as HTTP/2 does, which needs no
token, and any answer of the server shows that it runs. A closed connection without a new one is its loss; so is a long
silence. Ray closes a connection that sends no request, and one that pings too often.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from governor.processes.silence import TICK_SECONDS, SilenceTimer
from governor.tasks.protocol.wire import keep_alive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable

RECONNECT_TRIES: Final = 3
RECONNECT_SECONDS: Final = 0.5
CONNECT_SECONDS: Final = 1.0
HOLD_SECONDS: Final = 2.0
"""Between two checks of a server that answers."""
SILENT_SECONDS: Final = 10.0
"""A busy server may be late; after this time it counts as frozen."""
WORDS_SECONDS: Final = 2.0
GREETING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The preface and an empty SETTINGS frame (RFC 9113, 3.4); the server must send a SETTINGS frame at once."""

Server: TypeAlias = tuple[str, int, str]
"""Host, port, and name in messages."""
T = TypeVar("T")


async def _within(work: Coroutine[Any, Any, T], silence: float) -> asyncio.Future[T] | None:
    """The finished work; None: cancelled after `silence` seconds in which this process itself ran."""
    loop = asyncio.get_running_loop()
    interval = min(TICK_SECONDS, silence / 2)
    counted = SilenceTimer(loop.time(), interval=interval)
    working = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({working}, timeout=interval))[0]:
            if counted.tick(loop.time()) >= silence:
                return None
        return working
    finally:
        working.cancel()
        await asyncio.wait({working})


@contextlib.asynccontextmanager
async def _greeted(host: str, port: int) -> AsyncIterator[asyncio.StreamReader]:
    """A connection with TCP keep-alive that has sent the greeting. Raises OSError, TimeoutError among them."""
    opened = await _within(asyncio.open_connection(host, port), CONNECT_SECONDS)
    if opened is None:
        raise TimeoutError
    reader, writer = opened.result()
    try:
        keep_alive(writer.get_extra_info("socket"))
        writer.write(GREETING)
        yield reader
    finally:
        writer.transport.abort()


async def _read_answer(reader: asyncio.StreamReader, silence: float) -> bytes | None:
    """The answer of the server; empty: it has closed the connection; None: no answer within `silence` seconds."""
    answer = await _within(reader.read(4096), silence)
    if answer is None:
        return None
    return b"" if answer.exception() else answer.result()


async def answers(host: str, port: int, *, silence: float | None = None) -> bool:
    """Whether a server listens there and answers within `silence` seconds; None: `SILENT_SECONDS`."""
    try:
        async with _greeted(host, port) as reader:
            answer = await _read_answer(reader, silence or SILENT_SECONDS)
        if answer == b"":  # closed by a server that still runs, if it accepts another connection
            async with _greeted(host, port):
                return True
    except OSError:
        return False
    return answer is not None


async def first_words(host: str, port: int) -> bytes | None:
    """What a server answers to the greeting; empty: it has closed the connection; None: nothing, within `WORDS_SECONDS`. Raises
    OSError. A name may take long to resolve.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(GREETING)
        return await _read_answer(reader, WORDS_SECONDS)
    finally:
        writer.transport.abort()


def is_settings(answer: bytes) -> bool:
    """Whether an answer to the greeting begins as one of HTTP/2, which gRPC is."""
    return answer[3:4] == b"\4"


def why(error: OSError) -> str:
    """For a connection that failed: asyncio replaces the system's own words."""
    if error.errno is not None and error.errno > 0:  # the numbers of names that are not known are negative
        return os.strerror(error.errno)
    return error.strerror or str(error) or "no answer"


async def ended(host: str, port: int, what: str) -> str:
    """Waits until `what` no longer listens there, or no longer answers; returns the reason."""
    failures = 0
    while True:
        try:
            async with _greeted(host, port) as reader:
                failures = 0
                if await _read_answer(reader, SILENT_SECONDS) is None:
                    return f"{what} at {host}:{port} is silent for {SILENT_SECONDS:g} s"
                with contextlib.suppress(OSError):  # TimeoutError among them
                    async with asyncio.timeout(HOLD_SECONDS):
                        while await reader.read(4096):
                            continue
        except OSError as error:
            failures += 1
            if failures >= RECONNECT_TRIES:
                return f"{what} at {host}:{port} is gone ({why(error)})"
        await asyncio.sleep(RECONNECT_SECONDS)  # also in case the server closes each connection at once


async def race(name: str, *works: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Runs all of them until one has ended, and cancels the others; their tasks, in order."""
    tasks = [asyncio.create_task(work, name=name) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return tasks


async def first_ended(servers: Iterable[Server]) -> str:
    """As `ended`, for the first of them."""
    watches = await race("ray.watch", *(ended(*server) for server in servers))
    reason: str = next(watch.result() for watch in watches if not watch.cancelled())
    return reason


async def all_answer(servers: Iterable[Server]) -> bool:
    """Whether each of them answers."""
    return all(await asyncio.gather(*(answers(host, port) for host, port, _ in servers)))
