"""Checks the language models and text environments of a run file: their entries, and their combination.

In a phase whose agent has the entry ``openai:MODEL`` that model plays, over OpenAI chat completions; it needs a text
environment: one at ``http(s)://...``, or a ``module:Class`` with `get_task_prompt` and `step`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from governor.episodes.text import base_urls
from governor.episodes.text.entries import is_language_model, is_over_http
from governor.episodes.text.params import HTTPEnvironmentParams, LanguageModelParams
from governor.errors import UsageError
from governor.run_file.plain_data import entry_of, items, mapping, vector_of
from governor.units.sections import validated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic import BaseModel

    from governor.run_file.plain_data import Simulated
    from governor.units.sections import Path


def faults(
    environments: Mapping[str, Any], agents: Mapping[str, Any], simulated: Iterable[Simulated]
) -> Iterator[tuple[Path, str]]:
    """The faults of these sections, given as plain data."""
    for name, section in environments.items():
        if is_over_http(entry := entry_of(section)):
            place: Path = ("conductors", "environments", name)
            try:
                base_urls.checked(entry)
            except UsageError:
                yield (*place, "entry"), f"{entry!r} is no address: it should look like http://host:port/base"
            yield from _params(section, place, HTTPEnvironmentParams)
    for name, section in agents.items():
        if is_language_model(entry_of(section)):
            yield from _params(section, ("conductors", "agents", name), LanguageModelParams)
    for one in simulated:
        yield from _check_phase(one, agents)


def _check_phase(one: Simulated, agents: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    place, chosen, entry = one.path, one.environment, entry_of(one.section)
    names = [name for _, name in one.agents]
    models = [name for name in names if is_language_model(entry_of(agents.get(name)))]
    if not models:
        if is_over_http(entry) and any(name in agents for name in names):
            yield (
                (*place, "agents"),
                f"environment {chosen!r} speaks text: it needs an agent with the entry 'openai:MODEL'",
            )
        return
    model = models[0]
    if len(names) > 1 or isinstance(one.simulate.get("agents"), dict):
        yield (*place, "agents"), f"agent {model!r} is a language model and plays alone: name no other agent"
    if one.transport != "in_process":
        yield place, f"agent {model!r} is a language model: that needs transport: in_process"
    if one.phase.get("checkpoint") is not None:
        yield (
            ("phases", one.index, "checkpoint"),
            f"agent {model!r} is a language model: no state of it is here to keep (if it is inherited, say 'checkpoint: null')",
        )
    if entry.startswith("gymnasium:"):
        yield (
            (*place, "environment"),
            f"environment {chosen!r} speaks numbers, agent {model!r} is a language model: it needs http://host:port/base, or a module:Class with get_task_prompt",
        )
    if items(one.section.get("wrappers")):
        yield (
            (*place, "environment"),
            f"environment {chosen!r} has 'wrappers': they are not for text environments",
        )
    if vector_of(one.section)[0] != 1:
        yield (*place, "environment"), f"environment {chosen!r} has a 'vector': a language model plays none"
    ids = _count(one.section) if is_over_http(entry) else None
    workers = one.simulate.get("workers", 1)
    if ids is not None and isinstance(workers, int) and workers > ids:
        yield (
            (*place, "workers"),
            f"{workers} workers need as many ids, one is played once at a time; environment {chosen!r} has {ids}",
        )


def _count(section: Any) -> int | None:
    ids = mapping(mapping(section).get("params")).get("ids")
    return len(ids) if isinstance(ids, list | tuple) else ids if isinstance(ids, int) else None


def _params(section: Any, place: Path, model: type[BaseModel]) -> Iterator[tuple[Path, str]]:
    params = section.get("params", {})
    if isinstance(params, dict):
        for path, message in validated(params, model)[1]:
            yield (*place, "params", *path), message


def missing_keys(data: Any, environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """The environment variables of keys and headers that are not set, for a run given as plain data."""
    for path, variable in _variables(mapping(mapping(data).get("conductors"))):
        if isinstance(variable, str) and re.fullmatch(r"\w+", variable) and not environ.get(variable):
            where = (
                "here: export it, for `governor submit` where the daemon is started, or name it in `secrets`"
            )
            yield path, f"the environment variable {variable} is not set {where}"


def _variables(conductors: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    for name, section in mapping(conductors.get("agents")).items():
        if is_language_model(entry_of(section)):
            path: Path = ("conductors", "agents", name, "params", "api_key_env")
            yield path, mapping(section.get("params")).get("api_key_env")
    for name, section in mapping(conductors.get("environments")).items():
        if is_over_http(entry_of(section)):
            path = ("conductors", "environments", name, "params", "headers_env")
            for header, variable in mapping(mapping(section.get("params")).get("headers_env")).items():
                yield (*path, header), variable
