"""Reads plain data that may be of any shape: what is not as it should be counts as empty, because its fault is reported elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def items(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def entry_of(section: object) -> str:
    entry = mapping(section).get("entry")
    return entry if isinstance(entry, str) else ""


def agents_of(simulate: Mapping[str, Any]) -> list[tuple[int | str, object]]:
    """The agents of a simulation, each with its step in the path: its index in the list, or the player."""
    agents = simulate.get("agents")
    if isinstance(agents, dict):
        return [(player, name) for player, name in agents.items() if isinstance(player, str)]
    return list(enumerate(items(agents)))
