"""Text environments over HTTP, all over one pool of connections.

Rules:
1. Reading a prompt changes nothing: after 5xx, transport errors and time-outs it is requested again, `retries` times.
2. A step is sent once. It is sent again only if it cannot have arrived (no connection was made), or if the server supports
   `Idempotency-Key`: it has echoed the key of a step in an answer.
3. Redirects are not followed, and cookies not stored: an address is one environment.
4. Idle connections are closed before servers do it (uvicorn after 5 s): a step on a closing connection is lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from governor.episodes.text.base_urls import below, checked
from governor.episodes.text.environments.environment import (
    EnvironmentFault,
    EnvironmentHung,
    EnvironmentUnreachable,
    decoded,
    prompt_of,
    step_of,
)
from governor.episodes.text.headers import checked as checked_headers
from governor.episodes.text.http_retries import Retries, Retry, brief, retry_after, status_reason
from governor.episodes.text.proxies import Proxies, for_aiohttp
from governor.errors import UsageError
from governor.failures import Reason, one_line, shortened, utf8

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.episodes.text.environments.environment import TextStep

KEY_HEADER: Final = "Idempotency-Key"
IDLE_SECONDS: Final = 4.0
MAX_ANSWER_BYTES: Final = 1 << 26
"""Bytes."""
_CONFLICT: Final = 409
"""A server that supports keys answers so while it still processes a step."""


class HTTPEnvironments:
    """The connections to environments, and which of their servers support keys. For one event loop; close it."""

    def __init__(self, *, retries: int = 2, backoff: float = 0.5) -> None:
        """`backoff`: seconds before the first retry, then doubled."""
        self.retries = Retries(retries, backoff)
        self.honour_keys: set[str] = set()
        self.proxies = Proxies.of_environment()
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    def environment(
        self, *, base_url: str, env_name: str, env_id: str, headers: Mapping[str, str] | None = None
    ) -> HTTPEnvironment:
        """The environment at ``{base_url}/{env_name}/{env_id}``; a name with slashes is several parts of the path. Each request
        carries `headers`. Raises UsageError for a bad address or header, and for a part "." or "..", which is another path.
        """
        if not {".", ".."}.isdisjoint(f"{env_name}/{env_id}".split("/")):
            raise UsageError(f"environment {env_name!r}, id {env_id!r}: '.' and '..' are no names")
        try:
            base = below(checked(base_url), f"{quote(str(env_name))}/{quote(str(env_id), safe='')}")
        except UnicodeError as error:
            raise UsageError(f"environment {env_name!r}, id {env_id!r}: {one_line(error)}") from error
        return HTTPEnvironment(self, base, checked_headers(headers or {}))

    async def aclose(self) -> None:
        """Closes the connections; calls on their way fail. May be called again."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    def session(self) -> aiohttp.ClientSession:
        """Raises EnvironmentFault after `aclose`."""
        if self._closed:
            raise EnvironmentFault("the connections to the environments are closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session


class HTTPEnvironment:
    """One text environment behind a server. It holds no resources: `aclose` does nothing."""

    def __init__(self, connections: HTTPEnvironments, base: str, headers: dict[str, str]) -> None:
        self._connections = connections
        self._base = base
        self._headers = headers

    def __repr__(self) -> str:
        return f"HTTPEnvironment({self._base!r})"

    async def get_task_prompt(self, *, timeout: float) -> Any:  # noqa: ASYNC109 - one deadline, owned here
        return prompt_of(await self._ask("GET", "get_task_prompt", timeout))

    async def step(self, action: str, *, key: str, timeout: float) -> TextStep:  # noqa: ASYNC109 - as above
        return step_of(await self._ask("POST", "step", timeout, key=key, body={"action": action}))

    async def aclose(self) -> None:
        return None

    async def _ask(self, method: str, call: str, seconds: float, *, key: str = "", body: Any = None) -> Any:
        """The JSON value in the answer; `seconds` for each attempt. Raises EnvironmentFault."""
        url = URL(below(self._base, call), encoded=True)
        request = {"json": body, "headers": {**self._headers, KEY_HEADER: key} if key else self._headers}
        try:
            data = await self._connections.retries.run(
                lambda retry: self._once(method, url, request, key=key, seconds=seconds, retry=retry)
            )
        except Retry as failed:
            raise failed.fault from failed
        return decoded(data, where=call)

    async def _once(
        self, method: str, url: URL, request: dict[str, Any], *, key: str, seconds: float, retry: int
    ) -> bytes:
        """The body of the answer. Raises Retry for a failure after which the request may be sent again."""
        connections, where, server = self._connections, f"{method} {url}", str(url.origin())
        may_have_arrived, least = True, 0.0
        fault: EnvironmentFault
        try:
            proxy = for_aiohttp(connections.proxies.of(str(url)))
            async with (
                asyncio.timeout(seconds),
                connections.session().request(
                    method, url, allow_redirects=False, **proxy, **request
                ) as response,
            ):
                if key and response.headers.get(KEY_HEADER) == key:
                    connections.honour_keys.add(server)
                data = await body_of(response)
        except TimeoutError:
            fault = EnvironmentHung(f"{where}: no answer within {seconds:g} s")
        except (ValueError, UsageError) as error:  # no request can carry the address or key; a bad proxy
            raise EnvironmentFault(f"{where}: {one_line(error)}") from error
        except (aiohttp.ClientError, OSError) as error:
            fault = EnvironmentUnreachable(f"{where}: {one_line(error)}")
            may_have_arrived = not isinstance(error, aiohttp.ClientConnectorError)
        else:
            if 200 <= response.status < 300:
                return data
            said = data.decode(errors="replace")
            reason = Reason(
                f"{where}: {status_reason(response.status, said)}", _answer(response.status, said)
            )
            if response.status >= 500:
                fault, least = EnvironmentUnreachable(reason), retry_after(response.headers)
            elif key and response.status == _CONFLICT and retry:
                fault = EnvironmentFault(reason)  # the server still processes the step that was sent before
            else:
                raise EnvironmentFault(reason)
        if key and may_have_arrived and server not in connections.honour_keys:
            raise fault
        raise Retry(fault, least=least)


def _answer(status: int, said: str) -> str:
    """The server's whole answer, which stands in place of a traceback where the reason has a part of it."""
    return (
        shortened(utf8(f"HTTP {status}\n{said.rstrip()}"))
        if "\n" in said.rstrip() or brief(said) != said
        else ""
    )


async def body_of(response: aiohttp.ClientResponse) -> bytes:
    """Raises EnvironmentFault for a body of more than `MAX_ANSWER_BYTES`."""
    try:
        await response.content.readexactly(MAX_ANSWER_BYTES + 1)
    except asyncio.IncompleteReadError as whole:
        return whole.partial
    raise EnvironmentFault(
        f"{response.method} {response.url}: the answer is larger than {MAX_ANSWER_BYTES} bytes"
    )
