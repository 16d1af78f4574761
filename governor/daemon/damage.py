"""What is wrong with the record of a run, from the errors of reading it. Such a run is held until an abort."""

from __future__ import annotations

from typing import Final

import msgspec

from governor.errors import RecordDamaged, RunFileError

UNREADABLE: Final = (
    RecordDamaged,
    RunFileError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    msgspec.MsgspecError,
)
"""Errors from reading values that were not written by this daemon, or not as it expects them."""


def damage_in(error: Exception) -> str:
    """The damage that one of `UNREADABLE` tells of."""
    if isinstance(error, RecordDamaged):
        return f"{error.place}: {error.what}"
    if isinstance(error, RunFileError):
        faults = "; ".join(f"{fault.path}: {fault.message}" for fault in error.faults)
        return f"its run file is of another version: {faults}"
    return f"{type(error).__name__}: {error}"
