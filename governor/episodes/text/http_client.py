"""AIEvoBox's HTTP client, for programs that use it beside an Interactor: aiohttp, with the proxies of the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import aiohttp

from governor.episodes.text.proxies import Proxies, for_aiohttp
from governor.errors import UsageError

if TYPE_CHECKING:
    from aiohttp.client import _RequestContextManager

DNS_SECONDS: Final = 10
"""aiohttp's own."""


class HttpClient:
    """`start`, then requests, then `close`; it may be started again. For one event loop."""

    def __init__(  # noqa: PLR0917  # the order that users of AIEvoBox know
        self,
        timeout_s: float = 10.0,
        connect_timeout_s: float | None = None,
        sock_read_timeout_s: float | None = None,
        trust_env: bool = True,  # noqa: FBT001, FBT002  # as above
        max_connections: int = 100,
        max_keepalive_connections: int = 50,  # noqa: ARG002  # as above
        ttl_dns_cache_s: int | None = None,
    ) -> None:
        """Times are in seconds. `trust_env`: HTTP_PROXY, HTTPS_PROXY and NO_PROXY count, also ranges of addresses (CIDR).
        `max_keepalive_connections` has no effect: aiohttp bounds all connections together.
        """
        self._timeout = aiohttp.ClientTimeout(
            total=float(timeout_s),
            connect=_seconds(connect_timeout_s),
            sock_read=_seconds(sock_read_timeout_s),
        )
        self._limit = int(max_connections)
        self._dns_seconds = DNS_SECONDS if ttl_dns_cache_s is None else int(ttl_dns_cache_s)
        self._proxies = Proxies.of_environment() if trust_env else Proxies({})
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Does nothing while it is started."""
        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(limit=self._limit, ttl_dns_cache=self._dns_seconds)
            self._session = aiohttp.ClientSession(timeout=self._timeout, connector=connector)

    async def close(self) -> None:
        """Requests on their way fail. May be called again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def request(self, method: str, url: str, **options: Any) -> _RequestContextManager:
        """``async with client.request("GET", url) as response``; `options` are aiohttp's. Raises UsageError before `start`,
        and for an invalid address of a proxy.
        """
        if self._session is None:
            raise UsageError("the HttpClient is not started: await start() first")
        proxy = options.pop("proxy") if "proxy" in options else self._proxies.of(str(url))
        over = for_aiohttp(None if proxy is None else str(proxy))
        return self._session.request(method, url, **{**over, **options})

    def get(self, url: str, **options: Any) -> _RequestContextManager:
        return self.request("GET", url, **options)

    def post(self, url: str, **options: Any) -> _RequestContextManager:
        return self.request("POST", url, **options)

    def put(self, url: str, **options: Any) -> _RequestContextManager:
        return self.request("PUT", url, **options)

    def delete(self, url: str, **options: Any) -> _RequestContextManager:
        return self.request("DELETE", url, **options)


def _seconds(value: float | None) -> float | None:
    return None if value is None else float(value)
