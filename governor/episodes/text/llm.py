"""AIEvoBox's client of one language model, for programs that use it beside an Interactor, and its settings.

The Interactor itself asks through `chat_model`: one client for all sessions, with a bound on requests at once.
"""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from math import isnan
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from governor import logs
from governor.episodes.text.base_urls import below, checked
from governor.episodes.text.chat_model import ModelFault, is_transient, read
from governor.episodes.text.environments.environment import EnvironmentFault
from governor.episodes.text.environments.http_environment import body_of
from governor.episodes.text.http_client import HttpClient
from governor.episodes.text.http_retries import Retries, Retry, retry_after, status_reason
from governor.failures import one_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from governor.episodes.text.environments.environment import Message

ANSWER_SECONDS: Final = 300.0
ROUTED_ANSWER_SECONDS: Final = 900.0
"""Behind a `SessionSuffixBaseURLProvider`, which routes each session to one of several servers."""
CONNECT_SECONDS: Final = 10.0
RETRIES: Final = 4
UNLIMITED: Final = -1
TIMEOUT_VARIABLE: Final = "AIEVOBOX_LLM_TIMEOUT_S"

log = logs.get_logger()


def answer_seconds(*, routed: bool = False) -> float:
    """How long a model may take for an answer: `TIMEOUT_VARIABLE` in seconds, else the default."""
    default = ROUTED_ANSWER_SECONDS if routed else ANSWER_SECONDS
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = float("nan")
    if isnan(seconds):
        log.warning("llm.timeout_ignored", variable=TIMEOUT_VARIABLE, value=text, seconds=default)
        return default
    return seconds


class LLM:
    """A model behind a server of OpenAI chat completions. For one event loop."""

    def __init__(  # noqa: PLR0917  # the order that users of AIEvoBox know
        self,
        api_key: str,
        base_url: str,
        model: str,
        temperature: float = 1,
        llm_proxy: str | None = None,
        max_retries: int = RETRIES,
        retry_backoff: float = 2.0,
        max_retry_delay: float = 30.0,
        retry_jitter_ratio: float = 0.2,
        request_timeout_s: float | None = None,
        connect_timeout_s: float | None = None,
        sock_read_timeout_s: float | None = None,
        trust_env: bool = True,  # noqa: FBT001, FBT002  # as above
        http_client: HttpClient | None = None,
    ) -> None:
        """Times are in seconds; `request_timeout_s` limits an attempt, by default `AIEVOBOX_LLM_TIMEOUT_S` or 300 s. `max_retries`: -1
        for no limit. With `http_client`, which is started, its time-outs count; else each call has a connection of its own.
        """
        self.api_key = api_key
        self.base_url = checked(base_url)
        self.model = model
        self.temperature = temperature
        self.llm_proxy = llm_proxy or None
        self.max_retries = int(max_retries)
        self.request_timeout_s = max(
            1.0, float(answer_seconds() if request_timeout_s is None else request_timeout_s)
        )
        self.connect_timeout_s = max(
            0.1, float(CONNECT_SECONDS if connect_timeout_s is None else connect_timeout_s)
        )
        self.sock_read_timeout_s = max(
            0.1, float(self.request_timeout_s if sock_read_timeout_s is None else sock_read_timeout_s)
        )
        self.trust_env = bool(trust_env)
        self._retries = Retries(
            sys.maxsize if self.max_retries == UNLIMITED else self.max_retries,
            float(retry_backoff),
            longest=float(max_retry_delay),
            spread=max(0.0, float(retry_jitter_ratio)),
        )
        self._http_client = http_client

    async def generate(self, messages: list[Message]) -> dict[str, Any]:
        """The model's next message: `content`, `finish_reason` and `weight_version` (None if the server has none).

        Raises ModelFault after the last attempt, or at once for a refusal.
        """
        request: dict[str, Any] = {
            "json": {"model": self.model, "messages": messages, "temperature": self.temperature},
            "headers": {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {},
            **({"proxy": self.llm_proxy} if self.llm_proxy else {}),
        }
        async with self._client() as client:
            try:
                return await self._retries.run(lambda _: self._ask(client, request))
            except Retry as failed:
                raise ModelFault(f"no answer of the model: {failed}") from failed

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[HttpClient]:
        if self._http_client is not None:
            yield self._http_client
            return
        client = HttpClient(
            self.request_timeout_s, self.connect_timeout_s, self.sock_read_timeout_s, self.trust_env
        )
        await client.start()
        try:
            yield client
        finally:
            await client.close()

    async def _ask(self, client: HttpClient, request: dict[str, Any]) -> dict[str, Any]:
        """One attempt. Raises Retry or ModelFault."""
        try:
            async with client.post(below(self.base_url, "chat/completions"), **request) as response:
                data = await body_of(response)
        except TimeoutError as error:
            raise Retry(ModelFault(f"no answer in time: {one_line(error)}")) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Retry(ModelFault(f"transport: {one_line(error)}")) from error
        except EnvironmentFault as error:
            raise ModelFault(error.reason) from error
        except (TypeError, ValueError) as error:  # messages that are not JSON, an odd address
            raise ModelFault(f"the request cannot be made: {one_line(error)}") from error
        if response.status != 200:
            reason = status_reason(response.status, data.decode(errors="replace"))
            if is_transient(response.status):
                raise Retry(ModelFault(reason), least=retry_after(response.headers))
            raise ModelFault(f"the model refused: {reason}")
        answer = read(data, response.headers)
        return {
            "content": answer.text,
            "finish_reason": answer.finish_reason or "stop",
            "weight_version": answer.weight_version,
        }
