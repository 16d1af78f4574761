"""What a line about a run shows of its documents, the run file (`spec`) and the result; the journal has it in columns.

Each function takes a document as it is in the journal. Of one that can't be read there is nothing to show: None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


class _PhaseExcerpt(msgspec.Struct):
    name: str = ""
    metrics: dict[str, float] = {}


class _ResultExcerpt(msgspec.Struct):
    """The part of a `RunResult` that is read: the decoder passes over the rest."""

    phases: list[_PhaseExcerpt] = []
    seconds: float | None = None


class _Spec(msgspec.Struct):
    phases: list[msgspec.Raw] = []


_spec = msgspec.msgpack.Decoder(_Spec)
_result = msgspec.msgpack.Decoder(_ResultExcerpt)
_UNREADABLE: Final = (msgspec.MsgspecError, TypeError, ValueError)


def phases_of(spec: Any) -> int | None:
    """The number of phases."""
    try:
        return len(_spec.decode(spec).phases)
    except _UNREADABLE:
        return None


def metrics_of(result: Any) -> bytes | None:
    """The metrics of the last phase that has some, in msgpack."""
    try:
        phases = _result.decode(result).phases
    except _UNREADABLE:
        return None
    metrics = next((phase.metrics for phase in reversed(phases) if phase.metrics), None)
    return None if metrics is None else msgspec.msgpack.encode(metrics)


def metrics_of_phase(result: Any, name: str) -> dict[str, float]:
    """Those of the phase of this name; none where it has none."""
    try:
        phases = _result.decode(result).phases
    except _UNREADABLE:
        return {}
    return next((phase.metrics for phase in phases if phase.name == name), {})


def seconds_of(result: Any) -> float | None:
    """The time in work."""
    try:
        return _result.decode(result).seconds
    except _UNREADABLE:
        return None


FUNCTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    function.__name__: function for function in (phases_of, metrics_of, seconds_of)
}
"""By the names that SQL has for them."""
