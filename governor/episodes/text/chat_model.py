"""Answers of a language model over OpenAI chat completions: bounded in number, time and attempts.

Rules:
1. One client and one pool of connections serve all sessions, whatever their base URLs: each request has its whole address.
   A client for each session costs 28 ms and 0.9 MB; `with_options` for each request three times the time. Only a proxy
   that the environment names has a client of its own.
2. The client's own retries are off: retries are counted and bounded here. Transient failures are retried: 408, 429, 5xx,
   transport errors, time-outs, incomplete or invalid answers. Other refusals are final at once. Answers have a size limit.
3. A slot among the `concurrency` is held during a request, not during the pause before a retry.
4. A model that stops at once has answered, with an empty text: dropping such answers would change what is learned from.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec
import openai

from governor.episodes.text.base_urls import below, checked
from governor.episodes.text.environments.http_environment import MAX_ANSWER_BYTES
from governor.episodes.text.http_retries import (
    LOOKED_AT,
    SHOWN,
    Retries,
    Retry,
    brief,
    retry_after,
    status_reason,
)
from governor.episodes.text.proxies import Proxies
from governor.episodes.text.usage import Usage
from governor.errors import ConductorError, UsageError
from governor.failures import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.episodes.text.base_urls import BaseURLProvider
    from governor.episodes.text.environments.environment import Message

MOST_CONCURRENT: Final = 1000
"""The most connections of the client."""
_REQUEST_TIMEOUT: Final = 408
_TOO_MANY_REQUESTS: Final = 429
_MOST_TOKENS: Final = 1 << 40
"""The most tokens of an answer; sums stay in 64 bits."""
_OUT_OF_QUOTA: Final = "insufficient_quota"
"""A 429 that no retry resolves."""


class ModelFault(ConductorError):
    """The model gave no answer: it refused, or all attempts failed."""

    code = "model"


@dataclass(frozen=True, slots=True)
class Answer:
    """`finish_reason` is the server's ("stop", "length", ...), "" without one. Tokens that it does not count are 0."""

    text: str
    finish_reason: str
    weight_version: int | None
    prompt_tokens: int
    completion_tokens: int


class ChatModel:
    """Requests the next message of a conversation from a model. For one event loop."""

    def __init__(
        self,
        *,
        model: str,
        base_url_provider: BaseURLProvider,
        api_key: str | None = "EMPTY",
        temperature: float = 0.3,
        timeout: float | None = 60.0,
        retries: int = 4,
        backoff: float = 0.5,
        concurrency: int = 64,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """`timeout`: seconds for each attempt, None for no limit; `backoff`: seconds before the first retry, then doubled. Without
        `api_key` no request has one.

        `extra` goes into each request: `max_tokens`, `stop`, a server's own (`top_k`). Raises UsageError for invalid values.
        """
        if not 1 <= concurrency <= MOST_CONCURRENT:
            raise UsageError(f"concurrency is {concurrency}: it should be from 1 to {MOST_CONCURRENT}")
        if timeout is not None and not timeout > 0:
            raise UsageError(f"timeout {timeout}: it must be more than 0")
        self._body = {"model": model, "temperature": temperature, **(extra or {})}
        if self._body.get("stream"):
            raise UsageError("answers are not streamed: leave stream out")
        self.usage = Usage()
        self._provider = base_url_provider
        self._timeout = timeout
        self._retries = Retries(retries, backoff)
        self._slots = asyncio.Semaphore(concurrency)
        self._api_key = api_key
        self._headers = {} if api_key else {"Authorization": openai.Omit()}
        self._proxies = Proxies.of_environment()
        self._clients: dict[str | None, openai.AsyncOpenAI] = {None: self._made(None)}

    async def answer(self, messages: list[Message], *, session: Any) -> Answer:
        """The model's next message after `messages`. Raises ModelFault after the last attempt, or at once for a permanent failure.
        The caller limits the time of all attempts together.
        """
        url = self._url(session)

        async def attempt(number: int) -> Answer:
            async with self._slots:
                self.usage.retries += number > 0
                return await self._ask(url, messages)

        try:
            return await self._retries.run(attempt)
        except Retry as failed:
            times = f"{self._retries.most + 1} times" if self._retries.most else "once"
            raise ModelFault(f"no answer of the model, asked {times}: {failed}") from failed.fault

    async def aclose(self) -> None:
        """Closes the connections; pending requests fail. May be called again."""
        for client in self._clients.values():
            await client.close()

    def _made(self, proxy: str | None) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            api_key=self._api_key or "EMPTY",  # the client takes none from the environment then
            base_url="http://named.in.each.request.invalid",
            max_retries=0,
            http_client=openai.DefaultAioHttpClient(
                verify=_tls_context(),
                event_hooks={"response": [_read_bounded]},
                proxy=proxy,
                trust_env=False,  # the proxies are chosen here
            ),
        )

    def _client_for(self, url: str) -> openai.AsyncOpenAI:
        proxy = self._proxies.of(url)
        if proxy not in self._clients:
            self._clients[proxy] = self._made(proxy)
        return self._clients[proxy]

    def _url(self, session: Any) -> str:
        try:
            return below(checked(self._provider.get_base_url(session)), "chat/completions")
        except Exception as error:  # providers may be the user's
            raise ModelFault(f"no base URL for the session: {one_line(error)}") from error

    async def _ask(self, url: str, messages: list[Message]) -> Answer:
        """One attempt. Raises Retry or ModelFault."""
        self.usage.requests += 1
        try:
            # The client's own time-out begins anew with each piece that arrives.
            async with asyncio.timeout(self._timeout):
                got = await self._client_for(url).post(
                    url,
                    body={**self._body, "messages": messages},
                    cast_to=openai.HttpxBinaryResponseContent,
                    options={"timeout": self._timeout, "headers": self._headers},
                )
        except TimeoutError:
            raise Retry(ModelFault(f"no answer within {self._timeout or 0:g} s")) from None
        except openai.APIStatusError as error:
            raise _refusal(error) from None  # the frames are all of libraries
        except (openai.APIConnectionError, aiohttp.ClientError, OSError) as error:
            raise Retry(ModelFault(f"transport: {one_line(_root(error))}")) from error
        except Exception as error:  # messages that are not JSON, a closed client, an invalid host
            raise ModelFault(f"the request cannot be made: {one_line(error)}") from error
        if len(got.content) > MAX_ANSWER_BYTES:
            raise ModelFault(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
        answer = read(got.content, got.response.headers)
        self.usage.prompt_tokens += answer.prompt_tokens
        self.usage.completion_tokens += answer.completion_tokens
        return answer


@cache
def _tls_context() -> ssl.SSLContext:
    """One context for all clients of the process: reading the system's certificates takes 0.15 to 0.4 s."""
    return ssl.create_default_context()


async def _read_bounded(response: Any) -> None:
    """A hook of the HTTP client, which by itself reads bodies of any size, refusals too: it reads little more than
    `MAX_ANSWER_BYTES`, and drops the rest with the connection.
    """
    pieces, size = [], 0
    async with aclosing(response.aiter_bytes()) as body:
        async for piece in body:
            pieces.append(piece)
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                break
    await response.aclose()
    response._content = b"".join(pieces)  # noqa: SLF001  # the attribute of `aread`, which has no limit


def is_transient(status: int) -> bool:
    """Whether a request that was refused so may succeed later."""
    return status in {_REQUEST_TIMEOUT, _TOO_MANY_REQUESTS} or status >= 500


def _refusal(error: openai.APIStatusError) -> Exception:
    body = error.body
    text = body.get("message", body) if isinstance(body, dict) else body
    reason = status_reason(error.status_code, "" if text is None else text)
    if not is_transient(error.status_code) or error.code == _OUT_OF_QUOTA:
        return ModelFault(f"the model refused: {reason}")
    return Retry(ModelFault(reason), least=retry_after(error.response.headers))


def _root(error: BaseException) -> BaseException:
    """The first cause: the client's own names of transport errors are misleading (a lost connection is a time-out there)."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: Any = None
    metadata: Any = None
    weight_version: Any = None


def read(body: bytes, headers: Any) -> Answer:
    """The answer in a response of status 200. Raises Retry for an invalid one."""
    try:
        completion = msgspec.json.decode(body, type=_Completion)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        said = brief(body[:LOOKED_AT].decode(errors="replace"), SHOWN)
        raise Retry(ModelFault(f"malformed answer: {one_line(error)} in {said!r}")) from error
    if not completion.choices:
        raise Retry(ModelFault("malformed answer: no choices"))
    choice = completion.choices[0]
    text, reason = choice.message.content, choice.finish_reason or ""
    if text is None and reason in {"", "stop"}:
        raise Retry(ModelFault("empty answer: a message without content"))
    tokens = completion.usage if isinstance(completion.usage, dict) else {}
    metadata = completion.metadata if isinstance(completion.metadata, dict) else {}
    versions = (completion.weight_version, metadata.get("weight_version"), headers.get("x-weight-version"))
    return Answer(
        text=text or "",
        finish_reason=reason,
        weight_version=next((found for value in versions if (found := _version(value)) is not None), None),
        prompt_tokens=_count(tokens.get("prompt_tokens")),
        completion_tokens=_count(tokens.get("completion_tokens")),
    )


def _count(value: object) -> int:
    tokens = _whole(value)
    return tokens if tokens is not None and 0 <= tokens < _MOST_TOKENS else 0


def _version(value: object) -> int | None:
    """SGLang gives it as text, "default" before the first update."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    return _whole(value)


def _whole(value: object) -> int | None:
    """None for a value that is not a 64-bit integer: larger ones cannot be recorded."""
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
        return value
    return None
