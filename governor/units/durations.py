"""Durations as people write them: ``15min``, ``1h30min``, ``200ms``, or a bare number of seconds.

One grammar for the run file, the configuration and the command line; inside, a duration is a float of seconds.
"""

from __future__ import annotations

import math
import re
from typing import Final

_UNITS: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|s|h|d)")
PATTERN: Final = r"^\s*(?:\d+(?:\.\d+)?\s*(?:ms|min|s|h|d)\s*)+$"
"""The same grammar as one regular expression, for a JSON schema. That units do not repeat is checked in code."""

LONGEST: Final = 36_500 * _UNITS["d"]
HOW_TO: Final = "write a number of seconds, or a text like '30s', '15min', '1h30min', '200ms'"


def seconds(value: object) -> float:
    """Seconds of `value`, a number or a text of parts with units; not negative, and a hundred years at most.

    Raises:
        ValueError: `value` is no duration; the message says how to write one.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is no duration: {HOW_TO}")  # noqa: TRY004  # pydantic collects ValueErrors
    total = _of_text(value) if isinstance(value, str) else _finite(value)
    if not math.isfinite(total) or total < 0:
        raise ValueError(f"{value!r} is no duration: it must be finite and not below 0")
    if total > LONGEST:
        raise ValueError(f"{value!r} is longer than {LONGEST / _UNITS['d']:.0f}d")
    return total


def _finite(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _of_text(text: str) -> float:
    parts = _PART.findall(text)
    if re.fullmatch(PATTERN, text) is None or len({unit for _, unit in parts}) < len(parts):
        raise ValueError(f"{text!r} is no duration: {HOW_TO}")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def text(value: float) -> str:
    """`value` seconds for a reader, two units at most: ``850ms``, ``12.4s``, ``3min 5s``, ``2h 10min``."""
    if value < 0.9995:
        return f"{value * 1000:.0f}ms"
    if value < 59.95:
        return f"{value:.1f}s"
    whole = round(value)
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}min {rest}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h {minutes}min"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h"
