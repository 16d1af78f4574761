"""The services of a run file, programs that run beside the run: their keys, and their ports in other texts of the file.

``{services.NAME.port}`` stands for a port, which is known when the run begins. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeAlias

import msgspec
from pydantic import AfterValidator, Field, model_validator

from governor.run_file.plain_data import mapping
from governor.units import placeholders
from governor.units.fields import FilePath, VariableName, Word, Words
from governor.units.sections import Section, suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from governor.units.sections import Path

PREFIX: Final = "services."
LEVELS: Final = 200
"""Of nesting; a run file has no more."""
_PORT: Final = re.compile(r"services\.([\w-]+)\.port")


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return value


Port: TypeAlias = Annotated[int, Field(ge=1, le=65535)]


class ServiceReady(Section):
    """How a service shows that it is ready: one of the keys."""

    http: Annotated[
        Annotated[str, Field(pattern=r"^(/|https?://)\S*$", max_length=4096)] | None,
        Field(
            description="A GET of this URL, or of this path at its port, is answered with a status below 400.",
            examples=["/health"],
        ),
    ] = None
    port: Annotated[Port | None, Field(description="It takes connections at this port.", examples=[8000])] = (
        None
    )
    line: Annotated[
        Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_pattern)] | None,
        Field(
            description="It has printed a line in which this regular expression is found.",
            examples=["Uvicorn running on"],
        ),
    ] = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.http, self.port, self.line).count(None) != 2:
            raise ValueError("must have one of 'http', 'port' and 'line'")
        return self


class ServiceSection(Section):
    """A program that runs beside the run, such as a model server."""

    command: Annotated[
        Words,
        Field(
            description="The program with its arguments. `{port}` stands for its port, and there are `{run}`, `{run_folder}` and `{python}`.",
            examples=[["python", "-m", "http.server", "{port}"]],
        ),
    ]
    cwd: Annotated[
        FilePath | None,
        Field(
            description="Folder that it runs in; a relative path begins at the run file's folder, which null is.",
            examples=["server"],
        ),
    ] = None
    env: Annotated[
        dict[VariableName, Word],
        Field(
            description="Environment variables, beside those of the daemon; `PORT` is its port.",
            examples=[{"VLLM_LOGGING_LEVEL": "WARNING"}],
        ),
    ] = {}
    port: Annotated[
        Port | None,
        Field(
            description="Its port on the loopback interface, `{services.NAME.port}` elsewhere in the run file; null: a free one.",
            examples=[8000],
        ),
    ] = None
    ready: Annotated[
        ServiceReady | None,
        Field(
            description="What shows that it is ready; null: it takes connections at its port.",
            examples=[{"http": "/health"}],
        ),
    ] = None

    @model_validator(mode="after")
    def _has_one_port(self) -> Self:
        waits_for = self.ready.port if self.ready is not None else None
        if self.port is not None and waits_for is not None and self.port != waits_for:
            raise ValueError(f"has 'port: {self.port}', and is ready at 'port: {waits_for}'")
        return self

    @property
    def fixed_port(self) -> int | None:
        """None: a free one is chosen for each run."""
        return self.port or (self.ready.port if self.ready is not None else None)


# -- ports -------------------------------------------------------------------------------------------------


def used(data: object) -> Iterator[tuple[Path, str]]:
    """The placeholders of services in all texts of a run given as plain data, with their places. What stands there twice (an alias of
    YAML), or contains itself, is looked at once.
    """
    if not _mentions_any(data):
        return
    seen: set[int] = set()
    pending: list[tuple[Path, object]] = [((), data)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, str):
            yield from ((path, name) for name in placeholders.names(value) if name.startswith(PREFIX))
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            pending += reversed([((*path, step), each) for step, each in inner])


def _mentions_any(data: object) -> bool:
    """Whether any text may have one: most runs have none, and some have a hundred thousand tasks."""
    try:
        return PREFIX.encode() in msgspec.json.encode(data)
    except (
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
    ):  # no plain data: its faults are told elsewhere
        return True


def faults(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Of placeholders of services that there are not."""
    services = mapping(mapping(data.get("conductors")).get("services"))
    for path, name in used(data):
        found = _PORT.fullmatch(name)
        if found is None:
            yield path, f"unknown placeholder {{{name}}}: a service has {{{PREFIX}NAME.port}}"
        elif found[1] not in services:
            there = f"there is {', '.join(services)}" if services else "the run has no conductors.services"
            yield path, f"unknown service {found[1]!r}{suggestion(found[1], services) or f'; {there}'}"


def with_ports(data: Any, port_of: Callable[[str], int | None]) -> Any:
    """Plain data with the ports by service, a copy where there are any; those of None stay as they are."""
    return _copy(data, port_of, {}, LEVELS) if _mentions_any(data) else data


def _copy(data: Any, port_of: Callable[[str], int | None], copies: dict[int, Any], levels: int) -> Any:
    if isinstance(data, str):
        return placeholders.replaced(data, lambda name: _port(name, port_of)) if PREFIX in data else data
    if not isinstance(data, dict | list | tuple) or not levels:
        return data
    if id(data) not in copies:
        if isinstance(data, dict):
            named: dict[Any, Any] = {}
            copies[id(data)] = named
            named |= {key: _copy(value, port_of, copies, levels - 1) for key, value in data.items()}
        else:
            listed: list[Any] = []
            copies[id(data)] = listed
            listed += [_copy(value, port_of, copies, levels - 1) for value in data]
    return copies[id(data)]


def _port(name: str, port_of: Callable[[str], int | None]) -> str | None:
    """Also asked for what is no port of a service, as that of ""."""
    if not name.startswith(PREFIX):
        return None
    found = _PORT.fullmatch(name)
    port = port_of(found[1] if found else "")
    return None if port is None else str(port)
