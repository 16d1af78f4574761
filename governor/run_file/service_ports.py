"""``{services.NAME.port}`` in the texts of a run file: the port of a service, which is known when the run begins. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor.run_file.plain_data import mapping
from governor.units import placeholders
from governor.units.sections import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from governor.units.sections import Path

PREFIX: Final = "services."
LEVELS: Final = 200
"""Of nesting; a run file has no more."""
_PORT: Final = re.compile(r"services\.([\w-]+)\.port")


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
