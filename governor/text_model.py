"""What a run file says of language models and of text environments: their entries and `params`, and how they go together.

A phase whose agent has the entry ``openai:MODEL`` is played by that model over OpenAI chat completions; its environment
speaks text: it is at ``http(s)://...``, or a ``module:Class`` with `get_task_prompt` and `step`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from governor.episodes.text import base_urls, headers
from governor.episodes.text.entries import is_language_model, is_over_http
from governor.errors import UsageError
from governor.run_fields import Count, Duration, Params  # noqa: TC001  # pydantic reads them at run time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from governor.yaml_lines import Path

    Shape = Callable[[dict[Any, Any], type[BaseModel]], list[tuple[Path, str]]]

MAX_STEPS: Final = 1000
"""Of an episode, where the phase does not say: each step costs tokens."""


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
                f"{key!r} is nothing for 'extra'; there are {', '.join(LanguageModel.model_fields)}"
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


class _Params(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class LanguageModel(_Params):
    """`params` of an agent ``openai:MODEL``. Over several base URLs episodes are spread. Seconds for `timeout`, of each try."""

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


class HTTPEnvironment(_Params):
    """`params` of an environment ``http(s)://...``. `ids`, or so many of them from 0 on, are played in turn; without them
    each episode has its own number. `timeout` is in seconds, for each try. `headers_env` names the variables that hold the
    values of further headers.
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


def faults(
    environments: Mapping[str, Any], agents: Mapping[str, Any], phases: Sequence[Any], *, shape: Shape
) -> Iterator[tuple[Path, str]]:
    """Of these sections, given as plain data; `shape` finds the faults of a mapping that is to be a model."""
    for name, section in environments.items():
        if is_over_http(entry := _entry(section)):
            place: Path = ("conductors", "environments", name)
            try:
                base_urls.checked(entry)
            except UsageError:
                yield (*place, "entry"), f"{entry!r} is no address: it should look like http://host:port/base"
            yield from _params(section, place, HTTPEnvironment, shape)
    for name, section in agents.items():
        if is_language_model(_entry(section)):
            yield from _params(section, ("conductors", "agents", name), LanguageModel, shape)
    for index, phase in enumerate(phases):
        simulate = phase.get("simulate") if isinstance(phase, dict) else None
        if isinstance(simulate, dict):
            yield from _pairing(phase, ("phases", index), environments, agents)


def _pairing(
    phase: Mapping[str, Any], path: Path, environments: Mapping[str, Any], agents: Mapping[str, Any]
) -> Iterator[tuple[Path, str]]:
    simulate, place = phase["simulate"], (*path, "simulate")
    named, chosen = simulate.get("agents"), simulate.get("environment")
    given = named.values() if isinstance(named, dict) else named if isinstance(named, list | tuple) else ()
    names = [name for name in given if isinstance(name, str)]
    section = environments.get(chosen) if isinstance(chosen, str) else None
    entry = _entry(section)
    models = [name for name in names if is_language_model(_entry(agents.get(name)))]
    if not models:
        if is_over_http(entry) and any(name in agents for name in names):
            yield (
                (*place, "agents"),
                f"environment {chosen!r} speaks text: it needs an agent with the entry 'openai:MODEL'",
            )
        return
    model = models[0]
    if len(names) > 1 or isinstance(named, dict):
        yield (*place, "agents"), f"agent {model!r} is a language model and plays alone: name no other agent"
    if simulate.get("transport", "conductors") != "in_process":
        yield place, f"agent {model!r} is a language model: that needs transport: in_process"
    if phase.get("checkpoint") is not None:
        yield (
            (*path, "checkpoint"),
            f"agent {model!r} is a language model: no state of it is here to keep (if it is inherited, say 'checkpoint: null')",
        )
    if entry.startswith("gymnasium:"):
        yield (
            (*place, "environment"),
            f"environment {chosen!r} speaks numbers, agent {model!r} is a language model: it needs http://host:port/base, or a module:Class with get_task_prompt",
        )
    if isinstance(section, dict) and section.get("vector", 1) != 1:
        yield (*place, "environment"), f"environment {chosen!r} has a 'vector': a language model plays none"
    ids = _count(section) if is_over_http(entry) else None
    workers = simulate.get("workers", 1)
    if ids is not None and isinstance(workers, int) and workers > ids:
        yield (
            (*place, "workers"),
            f"{workers} workers need as many ids, one is played once at a time; environment {chosen!r} has {ids}",
        )


def _count(section: Any) -> int | None:
    params = section.get("params") if isinstance(section, dict) else None
    ids = params.get("ids") if isinstance(params, dict) else None
    return len(ids) if isinstance(ids, list | tuple) else ids if isinstance(ids, int) else None


def _params(section: Any, place: Path, model: type[BaseModel], shape: Shape) -> Iterator[tuple[Path, str]]:
    params = section.get("params", {})
    if isinstance(params, dict):
        for path, message in shape(params, model):
            yield (*place, "params", *path), message


def missing_keys(data: Any, environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """The variables of keys and headers that are not set here, of a run given as plain data."""
    for path, variable in _variables(_mapping(_mapping(data).get("conductors"))):
        if isinstance(variable, str) and re.fullmatch(r"\w+", variable) and not environ.get(variable):
            yield path, f"the environment variable {variable} is not set: export it where the run is started"


def _variables(conductors: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    for name, section in _mapping(conductors.get("agents")).items():
        if is_language_model(_entry(section)):
            path: Path = ("conductors", "agents", name, "params", "api_key_env")
            yield path, _mapping(section.get("params")).get("api_key_env")
    for name, section in _mapping(conductors.get("environments")).items():
        if is_over_http(_entry(section)):
            path = ("conductors", "environments", name, "params", "headers_env")
            for header, variable in _mapping(_mapping(section.get("params")).get("headers_env")).items():
                yield (*path, header), variable


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _entry(section: Any) -> str:
    entry = _mapping(section).get("entry")
    return entry if isinstance(entry, str) else ""
