"""Proxies that the environment names: HTTP_PROXY, HTTPS_PROXY and NO_PROXY, in small or capital letters.

The HTTP clients read them by rules that differ from each other (ranges of addresses in NO_PROXY, ALL_PROXY for SOCKS), or
with a thread and the file ~/.netrc for each request: here they are read once, by one rule.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from aiohttp import BasicAuth
from yarl import URL

from governor import logs
from governor.errors import UsageError

log = logs.get_logger()


class Proxies:
    """`schemes`: the address of the proxy by the scheme of a URL. Hosts and ranges (CIDR) of NO_PROXY have none."""

    def __init__(self, schemes: dict[str, str], ranges: tuple[IPv4Network | IPv6Network, ...] = ()) -> None:
        self._schemes = schemes
        self._ranges = ranges

    @classmethod
    def of_environment(cls) -> Self:
        """As the variables are now. Proxies of other kinds than HTTP (SOCKS) are left out, with a line in the log."""
        found = getproxies()
        schemes = {}
        for scheme in ("http", "https"):
            text = found.get(scheme, "")
            address = text if "://" in text else f"http://{text}"
            if text and address.startswith(("http://", "https://")):
                schemes[scheme] = address
            elif text:
                log.warning(
                    "proxy.ignored", variable=f"{scheme.upper()}_PROXY", kind=address.partition(":")[0]
                )
        ranges = (_range(item.strip()) for item in found.get("no", "").split(","))
        return cls(schemes, tuple(one for one in ranges if one is not None))

    def of(self, url: str) -> str | None:
        """The proxy for a request to `url`. Raises UsageError for an invalid address of it."""
        if not self._schemes:
            return None
        parts = urlsplit(url)
        proxy, host = self._schemes.get(parts.scheme), parts.hostname or ""
        if proxy is None or self._is_near(host) or proxy_bypass(host):
            return None
        _url(proxy)
        return proxy

    def _is_near(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return any(address in one for one in self._ranges)


def for_aiohttp(proxy: str | None) -> dict[str, Any]:
    """The options of a request over `proxy`, with its user and password apart: aiohttp's errors show the address. Raises
    UsageError for an invalid one.
    """
    if proxy is None:
        return {}
    url = _url(proxy)
    auth = BasicAuth(url.user or "", url.password or "") if url.raw_user or url.raw_password else None
    return {"proxy": url.with_user(None), "proxy_auth": auth}


def _url(proxy: str) -> URL:
    try:
        if (url := URL(proxy)).host:
            return url
    except ValueError:
        pass  # its text has the address, and so the password
    raise UsageError("the address of the proxy is invalid: it should look like http://host:8080")


def _range(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False) if "/" in text else None
    except ValueError:
        return None
