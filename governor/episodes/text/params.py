"""`params` of a language model and of a text environment over HTTP, as a run file has them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from governor.episodes.text import base_urls, headers
from governor.errors import UsageError
from governor.units.fields import Count, Duration, Params  # noqa: TC001  # pydantic reads them at run time

MAX_STEPS: Final = 1000
"""The step limit of an episode if the phase has none: each step costs tokens."""


def _address(value: str) -> str:
    try:
        return base_urls.checked(value)
    except UsageError as error:
        raise ValueError(str(error)) from None


def _variable(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):  # not shown: it may be the secret
        raise ValueError("must be the name of an environment variable that holds it, not the secret itself")
    return value


def _headers(value: dict[str, str]) -> dict[str, str]:
    try:
        return headers.checked(value)
    except UsageError as error:
        raise ValueError(str(error)) from None


def _extra(value: dict[str, Any]) -> dict[str, Any]:
    for key in ("model", "messages", "temperature", "max_tokens", "stream"):
        if key in value:
            raise ValueError(
                f"{key!r} is nothing for 'extra'; there are {', '.join(LanguageModelParams.model_fields)}"
            )
    return value


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _ids(value: object) -> int | tuple[str, ...]:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    texts = tuple(str(one) for one in value) if isinstance(value, list | tuple) else ()
    if not texts or "" in texts or len(set(texts)) < len(texts):
        raise ValueError("must be how many ids there are, or a list of them, all different and none empty")
    return texts


Addresses: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_address)], ...],
    BeforeValidator(_several),
    Field(strict=False, min_length=1),
]


Variable: TypeAlias = Annotated[str, AfterValidator(_variable)]
Headers: TypeAlias = Annotated[dict[str, str], BeforeValidator(_headers)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class LanguageModelParams(_Model):
    """`params` of an agent ``openai:MODEL``. Episodes are distributed over several base URLs. `timeout`: seconds for each attempt."""

    base_url: Addresses
    api_key_env: Variable | None = None
    temperature: Annotated[float, Field(ge=0)] = 0.3
    max_tokens: Count | None = None
    timeout: Duration = 60.0
    retries: Annotated[int, Field(ge=0, le=1000)] = 4
    concurrency: Annotated[int, Field(ge=1, le=1000)] | None = None
    session_suffix: bool = False
    message_cut: int = 3
    extra: Annotated[Params, AfterValidator(_extra)] = {}


class HTTPEnvironmentParams(_Model):
    """`params` of an environment ``http(s)://...``. `ids`, or the numbers from 0 up to a count, are played in turn; without them
    the id is the number of the episode. `timeout`: seconds for each attempt. `headers_env` names the environment variables
    with the values of further headers.
    """

    name: Annotated[str, Field(min_length=1)] | None = None
    ids: Annotated[int | tuple[str, ...] | None, PlainValidator(_ids)] = None
    timeout: Duration = 30.0
    retries: Annotated[int, Field(ge=0, le=1000)] = 2
    headers: Headers = {}
    headers_env: Annotated[dict[str, Variable], BeforeValidator(_headers)] = {}

    def id_of(self, episode: int) -> str:
        match self.ids:
            case None:
                return str(episode)
            case int(number):
                return str(episode % number)
            case ids:
                return ids[episode % len(ids)]
