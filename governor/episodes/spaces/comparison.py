"""Spaces in messages: what a space is in a few words, and how two differ."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING

import numpy as np

from governor.episodes.spaces.specs import (
    Box,
    Dict,
    Graph,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)
from governor.errors import ConductorError

if TYPE_CHECKING:
    from governor.episodes.spaces.specs import SpaceSpec


def summary(spec: SpaceSpec) -> str:  # noqa: PLR0911  # one for each kind
    """A short text for messages, also for a Box whose elements have bounds of their own."""
    match spec:
        case Box():
            dtype = np.dtype(spec.dtype)
            low, high = np.frombuffer(spec.low, dtype=dtype), np.frombuffer(spec.high, dtype=dtype)
            span = f"{low.min():g} to {high.max():g}, " if low.size else ""
            return f"Box({span}{spec.shape}, {dtype.name})"
        case MultiDiscrete():
            return f"MultiDiscrete({reprlib.repr(spec.nvec)}, {spec.shape}, start={reprlib.repr(spec.start)})"
        case Text(characters=None):
            return "Text"
        case Text():
            characters = reprlib.repr(spec.characters)
            return f"Text({spec.min_length} to {spec.max_length} of {characters})"
        case Dict():
            parts = (f"{key!r}: {summary(part)}" for key, part in zip(spec.keys, spec.spaces, strict=True))
            return f"Dict({', '.join(parts)})"
        case Tuple() | OneOf():
            return f"{type(spec).__name__}({', '.join(map(summary, spec.spaces))})"
        case Sequence():
            return f"Sequence({summary(spec.feature)}{', stack=True' if spec.stack else ''})"
        case Graph():
            return f"Graph({summary(spec.nodes)}{'' if spec.edges is None else ', ' + summary(spec.edges)})"
        case _:
            return repr(spec)


def require_same(built: tuple[SpaceSpec, SpaceSpec], given: tuple[SpaceSpec, SpaceSpec], *, of: str) -> None:
    """Raises ConductorError if the agent `of` that name was built for other spaces, (observation, action), than it is given."""
    if built != given:
        raise ConductorError(f"{of} was built for other spaces: {difference(built, given)}")


def difference(built: tuple[SpaceSpec, SpaceSpec], given: tuple[SpaceSpec, SpaceSpec]) -> str:
    """The difference between the spaces that an agent was built for and those that it is given, as (observation, action)."""
    parts = []
    for what, old, new in zip(("observations", "actions"), built, given, strict=True):
        if old != new:
            before, now = summary(old), summary(new)
            now = "the same with other bounds" if now == before else now
            parts.append(f"{what} of {before}, and gets {now}")
    return "; ".join(parts)
