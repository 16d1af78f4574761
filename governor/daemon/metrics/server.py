"""``GET /metrics`` for a monitoring system: a unix socket, or a port that this machine alone can reach.

Rules:
1. A scraper that is slow, hangs or asks all the time costs nothing: connections are few, each has a deadline, and what was
   measured is good for a second.
2. A request is one line and headers of `HEAD_BYTES` at most; it is answered once, then the connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from governor import logs
from governor.errors import ConfigError
from governor.metrics import OPEN_METRICS, PLAIN_TEXT, exposition
from transport import endpoints
from transport.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from governor.metrics import Measured

CONNECTIONS: Final = 16
SECONDS: Final = 10.0
"""For a whole connection."""
FRESH_SECONDS: Final = 1.0
HEAD_BYTES: Final = 8 * 1024
_UNIX: Final = "unix:"

log = logs.get_logger()


class MetricsServer:
    """`async with` serves at `listen`: ``unix:PATH`` or ``HOST:PORT``. `measure` is called at most once at a time.

    `group` may connect to the unix socket too. Raises ConfigError where it can't listen.
    """

    def __init__(
        self, listen: str, measure: Callable[[], Awaitable[Measured]], *, group: str | None = None
    ) -> None:
        self.address = listen
        self.refused = 0
        self._measure = measure
        self._group = group
        self._connections: set[asyncio.Task[None]] = set()
        self._measuring = asyncio.Lock()
        self._measured: tuple[float, Measured] = (-FRESH_SECONDS, {})
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        try:
            self._server = await self._listen()
        except (OSError, LookupError, TransportError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError("metrics.listen", [f"can't listen at {self.address}: {reason}"]) from error
        if not self.address.startswith(_UNIX):
            host, port = self._server.sockets[0].getsockname()[:2]
            self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        log.info("metrics.serving", address=self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    @property
    def _path(self) -> Path | None:
        return Path(self.address.removeprefix(_UNIX)) if self.address.startswith(_UNIX) else None

    async def _listen(self) -> asyncio.Server:
        if (path := self._path) is None:
            host, _, port = self.address.rpartition(":")
            return await asyncio.start_server(self._connected, host.strip("[]"), int(port), limit=HEAD_BYTES)
        endpoints.prepare_ipc(endpoints.parse_bind(f"ipc://{path}"))  # a socket that nobody serves is removed
        before = os.umask(0o177)
        try:
            server = await asyncio.start_unix_server(self._connected, path, limit=HEAD_BYTES)
        finally:
            os.umask(before)
        if self._group is not None:
            shutil.chown(path, group=self._group)
            path.chmod(0o660)  # a file of a local folder
        return server

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if len(self._connections) >= CONNECTIONS or task is None:
            self.refused += 1
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            async with asyncio.timeout(SECONDS):
                writer.write(await self._answer(reader))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the scraper is gone, or too slow
        finally:
            self._connections.discard(task)
            if writer.transport.get_write_buffer_size():  # what it has not read is not kept for it
                writer.transport.abort()
            else:
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _reply(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long\n")
        line, *headers = head.decode("latin-1").split("\r\n")
        match line.split(" "):
            case ["GET" | "HEAD" as method, target, version] if version.startswith("HTTP/1."):
                if target.partition("?")[0] != "/metrics":
                    return _reply(HTTPStatus.NOT_FOUND, "only /metrics is here\n")
            case [_, _, version] if version.startswith("HTTP/1."):
                return _reply(HTTPStatus.METHOD_NOT_ALLOWED, "only GET\n", "Allow: GET, HEAD")
            case _:
                return _reply(HTTPStatus.BAD_REQUEST, "not a request of HTTP/1\n")
        accepted = ",".join(
            value for name, _, value in (each.partition(":") for each in headers) if name.lower() == "accept"
        )
        open_metrics = wants_open_metrics(accepted)
        text = exposition(await self._fresh(), open_metrics=open_metrics)
        reply = _reply(HTTPStatus.OK, text, content_type=OPEN_METRICS if open_metrics else PLAIN_TEXT)
        return reply.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == "HEAD" else reply

    async def _fresh(self) -> Measured:
        async with self._measuring:
            now = asyncio.get_running_loop().time()
            at, measured = self._measured
            if now - at >= FRESH_SECONDS:
                measured = await self._measure()
                self._measured = now, measured
            return measured


def wants_open_metrics(accepted: str) -> bool:
    """Whether a header ``Accept`` prefers OpenMetrics to Prometheus' text."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for each in accepted.lower().split(","):
        kind, *parameters = (part.strip() for part in each.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                with contextlib.suppress(ValueError):
                    weight = float(parameter[2:])
        if kind in weights:
            weights[kind] = max(weights[kind], weight)
    return weights["application/openmetrics-text"] > 0.0 and (
        weights["application/openmetrics-text"] >= weights["text/plain"]
    )


def _reply(
    status: HTTPStatus, text: str, *headers: str, content_type: str = "text/plain; charset=utf-8"
) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        *headers,
    )
    return "\r\n".join([*head, "", ""]).encode() + body
