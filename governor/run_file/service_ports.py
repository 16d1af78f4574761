"""``{services.NAME.port}`` in the texts of a run file: the port of a service, which is known when the run begins. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from governor.run_file.plain_data import mapping
from governor.units import placeholders
from governor.units.sections import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from governor.units.sections import Path

PREFIX: Final = "services."
_PORT: Final = re.compile(r"services\.([\w-]+)\.port")


def used(data: object, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """The placeholders of services in all texts of a run given as plain data, with their places."""
    if isinstance(data, str):
        yield from ((path, name) for name in placeholders.names(data) if name.startswith(PREFIX))
        return
    inner = (
        data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list | tuple) else ()
    )
    for step, value in inner:
        yield from used(value, (*path, step))


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
    """A copy of plain data with the ports by service; those of None stay as they are."""
    if isinstance(data, str):
        return placeholders.replaced(data, lambda name: _port(name, port_of)) if PREFIX in data else data
    if isinstance(data, dict):
        return {key: with_ports(value, port_of) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [with_ports(value, port_of) for value in data]
    return data


def _port(name: str, port_of: Callable[[str], int | None]) -> str | None:
    """Also asked for what is no port of a service, as that of ""."""
    if not name.startswith(PREFIX):
        return None
    found = _PORT.fullmatch(name)
    port = port_of(found[1] if found else "")
    return None if port is None else str(port)
