"""Paths of keys with dots, as people see them: ``alpha`` for ``agents.walker.params.alpha``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def is_end(end: str, path: str) -> bool:
    """Whether the path ends in these parts."""
    return path == end or path.endswith(f".{end}")


def shortened(paths: Iterable[str]) -> dict[str, str]:
    """For each path its shortest end that no other one of them has."""
    whole = list(paths)
    short: dict[str, str] = {}
    for path in whole:
        parts = path.split(".")
        ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        others = [other for other in whole if other != path]
        short[path] = next((end for end in ends if not any(is_end(end, other) for other in others)), path)
    return short


def titled(params: Mapping[str, Any]) -> str:
    """``alpha=0.3, seed=1``."""
    short = shortened(params)
    return ", ".join(f"{short[path]}={value}" for path, value in params.items())
