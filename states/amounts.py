"""Text for amounts of a limit: bytes with a binary unit (KiB, MiB, ...), all others as a number."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Limit: TypeAlias = Literal["steps", "episodes", "tasks", "memory", "disk"]
Shared: TypeAlias = Literal["memory of the service", "room on the disk"]
"""What all runs have together."""
IN_BYTES: Final = frozenset({"memory", "disk", "memory of the service", "room on the disk"})
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def amount(limit: str, value: int) -> str:
    """``41``, or for memory and disk ``512 bytes``, ``2 GiB``, ``2.35 GiB``."""
    if limit not in IN_BYTES:
        return str(value)
    if value < 1024:
        return f"{value} bytes"
    power = min((value.bit_length() - 1) // 10, len(_UNITS))
    return f"{value / 1024**power:.2f}".rstrip("0").rstrip(".") + f" {_UNITS[power - 1]}"
