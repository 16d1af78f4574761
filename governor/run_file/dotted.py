"""Paths with dots into a run file given as plain data, as a matrix and `--set` name its keys. Pure.

Rules:
1. A path begins at a key of the run file (`seed`, `limits.wall_clock`), at a kind of conductor (`agents.walker.params.alpha`), or at the
   name of a phase (`train.simulate.episodes`): the first of these that is there.
2. In a list a part is the name of a phase, the id of a task, or a number from 0.
3. Environments, agents and phases must be there; whether a section has such a key is for its model to say.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from governor.run_file.plain_data import items, mapping
from governor.units.sections import shown, suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from governor.units.sections import Path

CONDUCTORS: Final = "conductors"
PHASES: Final = "phases"


class UnknownPath(Exception):
    """A path leads nowhere; the text tells why."""


def resolve(data: Mapping[str, Any], text: str, *, roots: Sequence[str], kinds: Sequence[str]) -> Path:
    """The place of a path in a run file. `roots`: the keys of run files; `kinds` those of `conductors`. Raises UnknownPath."""
    parts = re.sub(r"\[(\d+)\]", r".\1", text).split(".")
    if "" in parts:
        raise UnknownPath("must be the keys that lead to a value, with dots between them")
    phases = _names(data.get(PHASES))
    if parts[0] in roots:
        start: tuple[str, ...] = ()
    elif parts[0] in kinds:
        start = (CONDUCTORS,)
    elif _named(phases, parts) is not None:
        start = (PHASES,)
    else:
        near = suggestion(parts[0], [*roots, *kinds, *phases])
        raise UnknownPath(
            f"{parts[0]!r} is neither a key of the run file, nor {_listed(kinds)}, nor a phase{near}"
        )
    return _walk(data, [*start, *parts], kinds)


def with_value(node: Any, path: Path, value: Any) -> Any:
    """A copy with another value at `path`; what is not on its way is shared with the original."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        listed = list(node)
        listed[step] = with_value(listed[step], rest, value)
        return listed
    return {**mapping(node), step: with_value(mapping(node).get(step), rest, value)}


def value_at(node: Any, path: Path) -> Any:
    """The value at `path`, None where there is none."""
    for step in path:
        if isinstance(step, int):
            node = node[step] if isinstance(node, list | tuple) and step < len(node) else None
        else:
            node = mapping(node).get(step)
    return node


def _walk(data: Any, parts: list[str], kinds: Sequence[str]) -> Path:
    node, path = data, list[str | int]()
    while parts:
        if isinstance(node, list | tuple):
            at, used = _place_in(node, parts, path)
            node, parts = node[at], parts[used:]
            path.append(at)
            continue
        if node is not None and not isinstance(node, dict):
            where = ".".join(map(str, path))
            raise UnknownPath(f"{where} is {shown(node)} in the file, which has no key {parts[0]!r}")
        step = parts.pop(0)
        known = mapping(node)
        if len(path) == 2 and path[0] == CONDUCTORS and path[1] in kinds and step not in known:
            kind = str(path[1]).removesuffix("s")
            there = f"; there is {', '.join(map(repr, known))}" if known else f"; the run has no {path[1]}"
            raise UnknownPath(f"unknown {kind} {step!r}{suggestion(step, known) or there}")
        path.append(step)
        node = known.get(step)
    return tuple(path)


def _place_in(node: Sequence[Any], parts: Sequence[str], path: Sequence[str | int]) -> tuple[int, int]:
    """The index in a list, and the number of parts that name it."""
    names = _names(node)
    found = _named(names, parts)
    if found is not None:
        return found
    if parts[0].isdecimal() and int(parts[0]) < len(node):
        return int(parts[0]), 1
    kind = {PHASES: "phase", "tasks": "task"}.get(str(path[-1]) if path else "", "item")
    there = f"; there is {', '.join(map(repr, names))}" if names else f"; there are {len(node)} items, from 0"
    raise UnknownPath(f"unknown {kind} {parts[0]!r}{suggestion(parts[0], names) or there}")


def _names(sections: object) -> dict[str, int]:
    """The names of phases, or ids of tasks, with their indices."""
    found: dict[str, int] = {}
    for index, each in enumerate(items(sections)):
        name = mapping(each).get("name", mapping(each).get("id"))
        if isinstance(name, str):
            found.setdefault(name, index)
    return found


def _named(names: Mapping[str, int], parts: Sequence[str]) -> tuple[int, int] | None:
    """A name may have dots: the longest one counts."""
    for count in range(len(parts), 0, -1):
        if (name := ".".join(parts[:count])) in names:
            return names[name], count
    return None


def _listed(kinds: Sequence[str]) -> str:
    return ", ".join(f"of {kind}" for kind in kinds)
