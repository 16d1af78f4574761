"""The live page over HTTP: on loopback, read-only, for who has the token.

Rules:
1. The token is the first part of the path; without it there is no page, whatever is asked for.
2. The Host header must name loopback and this port: a page elsewhere, whose name was made to point here, is refused.
3. Only GET; nothing is cached, no address is passed on as a referrer, and no other page may frame it.
4. A page that takes no events for `SLOW_SECONDS` is dropped, with what was meant for it; it comes back by itself and gets all anew.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from aiohttp import web

from governor.errors import GovernorError, NoAnswer, NoSuchRun, TryAgain, Unreachable, UsageError
from governor.report.page import render

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from governor.report.live import Live

HOST: Final = "127.0.0.1"
SLOW_SECONDS: Final = 10.0
RETRY: Final = b"retry: 1000\n\n"
"""A page that lost its stream connects again after so many milliseconds."""
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class PageServer:
    """Serves the page of one daemon. `url` is known when it listens."""

    def __init__(self, live: Live, *, first: str | None = None, slow_seconds: float = SLOW_SECONDS) -> None:
        self._live = live
        self._first = first
        self._slow_seconds = slow_seconds
        self._token = secrets.token_urlsafe(24)
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}/{self._token}/"

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[PageServer]:
        """Raises UsageError for a port that is taken."""
        app = web.Application()
        app.router.add_get("/{token}/", self._page, allow_head=False)
        app.router.add_get("/{token}/events", self._events, allow_head=False)
        app.on_response_prepare.append(_with_headers)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, HOST, port)
            try:
                await site.start()
            except OSError as error:
                raise UsageError(f"port {port} of {HOST} can't be used: {error.strerror}") from error
            self._port = runner.addresses[0][1]
            yield self
        finally:
            await runner.cleanup()

    def _require(self, request: web.Request) -> None:
        token = request.match_info["token"]
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            raise web.HTTPNotFound(
                text="No such page. The address that `governor view` printed has a token.\n"
            )
        if request.headers.get("Host") not in (f"{HOST}:{self._port}", f"localhost:{self._port}"):
            raise web.HTTPForbidden(text="This page is for this machine alone.\n")

    async def _page(self, request: web.Request) -> web.Response:
        self._require(request)
        try:
            document = await self._live.document(request.query.get("run", self._first))
        except NoSuchRun as error:
            raise web.HTTPNotFound(text=f"{error}\n") from error
        except (Unreachable, NoAnswer, TryAgain) as error:
            raise web.HTTPServiceUnavailable(
                text=f"{error}\nThis page comes when the daemon is back.\n", headers={"Refresh": "2"}
            ) from error
        except GovernorError as error:
            raise web.HTTPInternalServerError(text=f"{error}\n") from error
        uid = document.runs[0].summary.uid if document.runs else ""
        page = await asyncio.to_thread(render, document, stream=f"events?run={quote(uid)}")
        return web.Response(text=page, content_type="text/html")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        self._require(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        events = self._live.following(request.query.get("run") or None)
        with suppress(ConnectionError):
            try:
                await response.write(RETRY)
                async for name, data in events:
                    frame = f"event: {name}\ndata: {data}\n\n" if name else ": at work\n\n"
                    async with asyncio.timeout(self._slow_seconds):
                        await response.write(frame.encode())
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()  # what it did not take would be waited for
            finally:
                await events.aclose()
        return response


async def _with_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
