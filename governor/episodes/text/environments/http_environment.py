"""Text environments over HTTP, all over one pool of connections.

Rules:
1. Reading a prompt changes nothing: after 5xx, transport errors and time-outs it is requested again, `retries` times.
2. A step is sent once. It is sent again only if it cannot have arrived (no connection was made), or if the server supports
   `Idempotency-Key`: it has echoed the key of a step in an answer, or the user says so.
3. Redirects are not followed, and cookies not stored: an address is one environment.
4. Idle connections are closed before servers do it (uvicorn after 5 s): a step on a closing connection is lost.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from governor.episodes.entries import one_line
from governor.episodes.text.base_urls import checked
from governor.episodes.text.environments.environment import (
    EnvironmentFault,
    EnvironmentHung,
    EnvironmentUnreachable,
    decoded,
    prompt_of,
    step_of,
)
from governor.episodes.text.headers import checked as checked_headers
from governor.episodes.text.http_retries import pause, retry_after, status_reason
from governor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.episodes.text.environments.environment import Message, TextStep

KEY_HEADER: Final = "Idempotency-Key"
IDLE_SECONDS: Final = 4.0
MAX_ANSWER_BYTES: Final = 1 << 26
"""Bytes."""
_CONFLICT: Final = 409


class _Failed(Exception):
    """One attempt has failed. `again`: another may succeed; `unsent`: the server cannot have received it."""

    def __init__(
        self,
        fault: EnvironmentFault,
        *,
        again: bool = True,
        unsent: bool = False,
        retry_after_seconds: float | None = None,
    ) -> None:
        self.fault = fault
        self.again = again
        self.unsent = unsent
        self.retry_after_seconds = retry_after_seconds
        super().__init__(fault.reason)


class HTTPEnvironments:
    """The connections to environments, and which of their servers support keys. For one event loop; close it."""

    def __init__(self, *, retries: int = 2, backoff: float = 0.5, idempotent_steps: bool = False) -> None:
        """`backoff`: seconds before the first retry, then doubled. `idempotent_steps`: every server supports keys."""
        if retries < 0 or not backoff >= 0:
            raise UsageError(f"retries {retries}, backoff {backoff}: neither may be negative")
        self._retries = retries
        self._backoff = backoff
        self._idempotent = idempotent_steps
        self._honour_keys: set[str] = set()
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    def environment(
        self, *, base_url: str, env_name: str, env_id: str, headers: Mapping[str, str] | None = None
    ) -> HTTPEnvironment:
        """The environment at ``{base_url}/{env_name}/{env_id}``; each request carries `headers`. Raises UsageError for a bad
        address or header.
        """
        return HTTPEnvironment(
            self, base_url=base_url, env_name=env_name, env_id=env_id, headers=checked_headers(headers or {})
        )

    async def aclose(self) -> None:
        """Closes the connections; calls on their way fail. May be called again."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def ask(
        self,
        method: str,
        url: URL,
        *,
        seconds: float,
        headers: dict[str, str],
        key: str = "",
        body: Any = None,
    ) -> bytes:
        """The body of the answer; `seconds` for each attempt. Raises EnvironmentFault."""
        if key:
            headers = {**headers, KEY_HEADER: key}
        for retry in range(self._retries + 1):
            try:
                return await self._once(
                    method, url, seconds=seconds, headers=headers, key=key, body=body, retry=retry
                )
            except _Failed as failed:
                again = failed.again and (not key or failed.unsent or self._honours(url))
                if retry == self._retries or not again:
                    raise failed.fault from failed
                wait = pause(retry, backoff=self._backoff, minimum=failed.retry_after_seconds)
            await asyncio.sleep(wait)
        raise AssertionError("the last try returns or raises")

    async def _once(
        self,
        method: str,
        url: URL,
        *,
        seconds: float,
        headers: dict[str, str],
        key: str,
        body: Any,
        retry: int,
    ) -> bytes:
        where = f"{method} {url}"
        try:
            async with (
                asyncio.timeout(seconds),
                self._opened().request(
                    method, url, json=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                if key and response.headers.get(KEY_HEADER) == key:
                    self._honour_keys.add(str(url.origin()))
                data = await _body(response)
        except TimeoutError as error:
            raise _Failed(EnvironmentHung(f"{where}: no answer within {seconds:g} s")) from error
        except ValueError as error:  # an address or a key that no request can carry
            raise EnvironmentFault(f"{where}: {one_line(error)}") from error
        except (aiohttp.ClientError, OSError) as error:
            unsent = isinstance(error, aiohttp.ClientConnectorError)
            raise _Failed(EnvironmentUnreachable(f"{where}: {one_line(error)}"), unsent=unsent) from error
        if 200 <= response.status < 300:
            return data
        reason = f"{where}: {status_reason(response.status, data.decode(errors='replace'))}"
        if response.status >= 500:
            retry_after_seconds = retry_after(response.headers, now=datetime.now(UTC))
            raise _Failed(EnvironmentUnreachable(reason), retry_after_seconds=retry_after_seconds)
        # A server that supports keys answers 409 while it still processes the step that was sent before.
        raise _Failed(
            EnvironmentFault(reason), again=bool(key) and response.status == _CONFLICT and retry > 0
        )

    def _honours(self, url: URL) -> bool:
        return self._idempotent or str(url.origin()) in self._honour_keys

    def _opened(self) -> aiohttp.ClientSession:
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

    def __init__(
        self,
        connections: HTTPEnvironments,
        *,
        base_url: str,
        env_name: str,
        env_id: str,
        headers: dict[str, str],
    ) -> None:
        self._connections = connections
        self._headers = headers
        try:
            base = f"{checked(base_url)}/{quote(str(env_name), safe='')}/{quote(str(env_id), safe='')}"
        except UnicodeError as error:
            raise UsageError(f"environment {env_name!r}, id {env_id!r}: {one_line(error)}") from error
        self._prompt_url = URL(f"{base}/get_task_prompt", encoded=True)
        self._step_url = URL(f"{base}/step", encoded=True)

    def __repr__(self) -> str:
        return f"HTTPEnvironment({str(self._step_url.parent)!r})"

    async def get_task_prompt(self, *, timeout: float) -> list[Message]:  # noqa: ASYNC109 - one deadline, owned here
        data = await self._connections.ask("GET", self._prompt_url, seconds=timeout, headers=self._headers)
        return prompt_of(decoded(data, where="get_task_prompt"))

    async def step(self, action: str, *, key: str, timeout: float) -> TextStep:  # noqa: ASYNC109 - as above
        data = await self._connections.ask(
            "POST",
            self._step_url,
            seconds=timeout,
            headers=self._headers,
            key=key,
            body={"action": action},
        )
        return step_of(decoded(data, where="step"))

    async def aclose(self) -> None:
        return None


async def _body(response: aiohttp.ClientResponse) -> bytes:
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise EnvironmentFault(
                f"{response.method} {response.url}: the answer is larger than {MAX_ANSWER_BYTES} bytes"
            )
        pieces.append(piece)
    return b"".join(pieces)
