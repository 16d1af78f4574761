"""Sizes as people write them: ``512MiB``, ``2.5GiB`` (units of 1024), ``2GB`` (of 1000), or a bare number of bytes.

Inside, a size is an int of bytes.
"""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {
    "B": 1,
    **{f"{prefix}iB": 1024 ** (power + 1) for power, prefix in enumerate("KMGT")},
    **{f"{prefix}B": 1000 ** (power + 1) for power, prefix in enumerate("kMGT")},
}
_TEXT: Final = re.compile(rf"(\d{{1,18}}(?:\.\d{{1,9}})?)\s*({'|'.join(_UNITS)})")
PATTERN: Final = rf"^\s*{_TEXT.pattern}\s*$"
"""The same grammar, for a JSON schema."""
LEAST: Final = 1024**2
"""A smaller limit usually lacks its unit: ``memory: 2``."""
MOST: Final = 2**63 - 1
HOW_TO: Final = (
    "write a number of bytes, or a text like '512MiB' or '2GiB' (KiB, MiB, GiB, TiB: units of 1024), "
    "'500MB' or '2GB' (kB, MB, GB, TB: units of 1000)"
)


def in_bytes(value: object) -> int:
    """Bytes of `value`. Raises ValueError, which says how to write one."""
    found = _bytes(value)
    if found is None or not 0 <= found <= MOST:
        raise ValueError(f"{value!r} is no size: {HOW_TO}")
    return found


def text(size: float) -> str:
    """For a reader: ``2.35 GiB``."""
    from states.amounts import amount  # noqa: PLC0415  # all of `states`: 30 ms, which no conductor needs

    return amount("disk", int(size))


def limit(value: object) -> int:
    """Bytes of `value`, from 1 MiB up. Raises ValueError, which says how to write one."""
    found = _bytes(value)
    if found is None:
        raise ValueError(f"{value!r} is no size: {HOW_TO}")
    if not LEAST <= found <= MOST:
        bound = "at least 1MiB" if found < LEAST else "less than 8 EiB"
        raise ValueError(f"{value!r} is {found} bytes, and must be {bound}: {HOW_TO}")
    return found


def _bytes(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    part = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    return None if part is None else round(float(part[1]) * _UNITS[part[2]])
