"""Answers of a language model over OpenAI chat completions: bounded in number, in time and in tries.

Rules:
1. One client and one pool of connections serve all sessions, whatever their base URLs: each request names its whole
   address. A client for each session costs 28 ms and 0.9 MB; `with_options` for each request three times the time.
2. The client's own retries are off: they are counted and bounded here. What may pass by itself is asked again: 408, 429,
   5xx, transport errors, time-outs, answers that break off or make no sense. Other refusals are final at once.
   Answers have a largest size.
3. A place among the `concurrency` is held while a request is on its way, not during the pause before a retry.
4. A model that ends at once has answered, with an empty text: dropping such answers would change what is learnt from.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec
import openai

from governor.episodes.entries import one_line
from governor.episodes.text.base_urls import (
    BaseURLProvider,
    SessionSuffixBaseURLProvider,
    StaticBaseURLProvider,
    checked,
)
from governor.episodes.text.environments.http_environment import LARGEST_ANSWER
from governor.episodes.text.http_retries import brief, pause, retry_after, status_reason
from governor.episodes.text.usage import Usage
from governor.errors import GovernorError, UsageError

if TYPE_CHECKING:
    from governor.episodes.text.environments.environment import Message

__all__ = [
    "Answer",
    "BaseURLProvider",
    "ChatModel",
    "ModelFault",
    "SessionSuffixBaseURLProvider",
    "StaticBaseURLProvider",
    "Usage",
]
MOST_CONCURRENT: Final = 1000
"""The connections that the client keeps."""
_REQUEST_TIMEOUT: Final = 408
_TOO_MANY_REQUESTS: Final = 429
_MOST_TOKENS: Final = 1 << 40
"""No answer has more; sums stay in 64 bits."""
_OUT_OF_QUOTA: Final = "insufficient_quota"
"""A 429 that no wait will cure."""


class ModelFault(GovernorError):
    """The model gave no answer: it refused, or the tries are used up."""

    code = "model"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class _Again(Exception):
    """One try has failed, and the next may not. `told`: the seconds that the server asks to wait."""

    def __init__(self, reason: str, *, told: float | None = None) -> None:
        self.reason = reason
        self.told = told
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Answer:
    """`finish_reason` is the server's ("stop", "length", ...), "" where it gives none. Tokens that it does not count are 0."""

    text: str
    finish_reason: str
    weight_version: int | None
    prompt_tokens: int
    completion_tokens: int


class ChatModel:
    """Asks a model for the next message of a conversation. For one event loop."""

    def __init__(
        self,
        *,
        model: str,
        base_url_provider: BaseURLProvider,
        api_key: str = "EMPTY",
        temperature: float = 0.3,
        timeout: float = 60.0,
        retries: int = 4,
        backoff: float = 0.5,
        concurrency: int = 64,
        **extra: Any,
    ) -> None:
        """`timeout`: seconds for each try; `backoff`: seconds before the first retry, then doubled.

        `extra` goes into each request: `max_tokens`, `stop`, a server's own (`top_k`), and the client's `extra_body`,
        `extra_headers`, `extra_query`. Raises UsageError for values that make no sense.
        """
        if not 1 <= concurrency <= MOST_CONCURRENT:
            raise UsageError(f"concurrency is {concurrency}: it should be from 1 to {MOST_CONCURRENT}")
        if not timeout > 0 or retries < 0 or not backoff >= 0:
            raise UsageError(
                f"timeout {timeout}, retries {retries}, backoff {backoff}: none may be negative, nor timeout 0"
            )
        if extra.get("stream"):
            raise UsageError("answers are taken whole: leave stream out")
        self.usage = Usage()
        self._provider = base_url_provider
        self._timeout = timeout
        self._retries = retries
        self._backoff = backoff
        self._places = asyncio.Semaphore(concurrency)
        self._options: Any = {"timeout": timeout}
        if "extra_headers" in extra:
            self._options["headers"] = extra.pop("extra_headers")
        if "extra_query" in extra:
            self._options["params"] = extra.pop("extra_query")
        self._body = {
            "model": model,
            "temperature": temperature,
            **(extra.pop("extra_body", None) or {}),
            **extra,
        }
        self._client = openai.AsyncOpenAI(
            api_key=api_key,
            base_url="http://named.in.each.request.invalid",
            max_retries=0,
            http_client=openai.DefaultAioHttpClient(
                verify=_tls_context(), event_hooks={"response": [_read_bounded]}
            ),
        )

    async def answer(self, messages: list[Message], *, session: Any) -> Answer:
        """The model's next message after `messages`. Raises ModelFault when the tries are used up, or at once for what
        would not pass. Its caller bounds the time of all tries together.
        """
        url = self._url(session)
        for retry in range(self._retries + 1):
            try:
                async with self._places:
                    return await self._ask(url, messages)
            except _Again as failed:
                last = failed
            if retry < self._retries:
                await asyncio.sleep(pause(retry, backoff=self._backoff, told=last.told))
                self.usage.retries += 1
        tries = "once" if self._retries == 0 else f"{self._retries + 1} times"
        raise ModelFault(f"no answer of the model, asked {tries}: {last.reason}") from last

    async def aclose(self) -> None:
        """Closes the connections; requests on their way fail. May be called again."""
        await self._client.close()

    def _url(self, session: Any) -> str:
        try:
            return f"{checked(self._provider.get_base_url(session))}/chat/completions"
        except Exception as error:  # providers may be the user's
            raise ModelFault(f"no base URL for the session: {one_line(error)}") from error

    async def _ask(self, url: str, messages: list[Message]) -> Answer:
        """One try. Raises _Again or ModelFault."""
        self.usage.requests += 1
        try:
            # The client's own time-out begins anew with each piece that arrives.
            async with asyncio.timeout(self._timeout):
                got = await self._client.post(
                    url,
                    body={**self._body, "messages": messages},
                    cast_to=openai.HttpxBinaryResponseContent,
                    options=self._options,
                )
        except TimeoutError:
            raise _Again(f"no answer within {self._timeout:g} s") from None
        except openai.APIStatusError as error:
            raise _refusal(error) from error
        except (openai.APIConnectionError, aiohttp.ClientError, OSError) as error:
            raise _Again(f"transport: {one_line(_root(error))}") from error
        except Exception as error:  # messages that are no JSON, a closed client, an impossible host
            raise ModelFault(f"the request cannot be made: {one_line(error)}") from error
        if len(got.content) > LARGEST_ANSWER:
            raise ModelFault(f"the answer is larger than {LARGEST_ANSWER} bytes")
        answer = read(got.content, got.response.headers)
        self.usage.prompt_tokens += answer.prompt_tokens
        self.usage.completion_tokens += answer.completion_tokens
        return answer


@cache
def _tls_context() -> ssl.SSLContext:
    """One for all clients of the process: reading the system's certificates takes 0.15 to 0.4 s."""
    return ssl.create_default_context()


async def _read_bounded(response: Any) -> None:
    """A hook of the HTTP client, which would read bodies without end, refusals too: not much more than
    `LARGEST_ANSWER` is read, and what comes after it is dropped with the connection.
    """
    pieces, size = [], 0
    async with aclosing(response.aiter_bytes()) as body:
        async for piece in body:
            pieces.append(piece)
            size += len(piece)
            if size > LARGEST_ANSWER:
                break
    await response.aclose()
    response._content = b"".join(pieces)  # noqa: SLF001  # where `aread`, which has no bound, keeps it


def _refusal(error: openai.APIStatusError) -> Exception:
    body = error.body
    text = body.get("message", body) if isinstance(body, dict) else body
    reason = status_reason(error.status_code, "" if text is None else text)
    transient = error.status_code in {_REQUEST_TIMEOUT, _TOO_MANY_REQUESTS} or error.status_code >= 500
    if not transient or error.code == _OUT_OF_QUOTA:
        return ModelFault(f"the model refused: {reason}")
    return _Again(reason, told=retry_after(error.response.headers, now=datetime.now(UTC)))


def _root(error: BaseException) -> BaseException:
    """The first cause: the client's names for transport errors are not true (a lost connection is a time-out there)."""
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
    """The answer in a response of status 200. Raises _Again for what is none."""
    try:
        completion = msgspec.json.decode(body, type=_Completion)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _Again(
            f"malformed answer: {one_line(error)} in {brief(body[:200].decode(errors='replace'))!r}"
        ) from error
    if not completion.choices:
        raise _Again("malformed answer: no choices")
    choice = completion.choices[0]
    text, reason = choice.message.content, choice.finish_reason or ""
    if text is None and reason in {"", "stop"}:
        raise _Again("empty answer: a message without content")
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
    """None for what is no whole number of 64 bits: nothing larger can be put on record."""
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
        return value
    return None
