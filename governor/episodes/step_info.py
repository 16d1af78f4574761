"""The whole `info` of a step as plain data, for agents with ``needs_info = True``: the same on every transport.

Numbers, texts, bytes, None and arrays of numbers pass, and dicts with texts as keys, lists and tuples (as lists) of them. All else
is left out, and each such key is logged once. Nothing is shared with the environment, which may change its info at the next step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from governor import logs
from governor.episodes.arrays import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

DEEPEST: Final = 16
MOST_LOGGED: Final = 100
INTEGERS: Final = range(-(2**63), 2**64)
"""What msgpack has."""

log = logs.get_logger()
_logged: set[str] = set()
"""In this process."""


class _LeftOut(Exception):
    """A value that is no plain data; with its type."""


def with_info(read: Callable[[Any], Any] | None) -> Callable[[Any], tuple[Any, dict[str, Any]]]:
    """A function that makes of an info what `read` makes of it, and its plain data."""
    if read is None:
        return lambda info: (None, plain_info(info))
    return lambda info: (read(info), plain_info(info))


def plain_info(info: Any) -> dict[str, Any]:
    """Empty for what is no dict."""
    found: dict[str, Any] = {}
    if isinstance(info, dict):
        _put(info, "", found, 0)
    return found


def _put(info: dict[Any, Any], path: str, found: dict[str, Any], depth: int) -> None:
    for key, value in info.items():
        try:
            if not isinstance(key, str):
                raise _LeftOut(f"a key of type {type(key).__name__}")  # noqa: TRY301  # as any of its values
            found[key] = _plain(value, f"{path}{key}.", depth)
        except _LeftOut as error:
            name = f"{path}{key}"[:64]
            if name not in _logged and len(_logged) < MOST_LOGGED:
                _logged.add(name)
                log.info("info.not_sent", key=name, reason=str(error))


def _plain(value: Any, path: str, depth: int) -> Any:
    if value is None or isinstance(value, bool | float | str | bytes):
        return value
    if isinstance(value, int) and value in INTEGERS:
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in KINDS:
        return value.copy()
    if depth < DEEPEST and isinstance(value, dict):
        inner: dict[str, Any] = {}
        _put(value, path, inner, depth + 1)
        return inner
    if depth < DEEPEST and isinstance(value, list | tuple):
        return [_plain(item, path, depth + 1) for item in value]
    raise _LeftOut(f"a {type(value).__name__} is no plain data")
