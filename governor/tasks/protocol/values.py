"""Values of tasks: small JSON-like ones are part of the record, others go to files of the run.

Rules:
1. A file appears whole or not at all (`files`).
2. JSON-like is None, bool, int of 64 bits, float, str, list, tuple (which becomes a list, see `store`) and dict with str
   keys, and numpy's scalars. Any other value is a file: ``.json`` for large JSON-like values, ``.npy`` for arrays, ``.pkl`` for the rest,
   by value where a class was defined in the driver's script.
3. Files are read by runners of the same run alone; nothing from a socket is unpickled.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from governor.failures import one_line
from governor.files import write_whole
from governor.tasks.api import TaskResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

INLINE_BYTES: Final = 64 * 1024
DEEPEST: Final = 100
"""Levels of nesting in a message: decoders recurse, and their stacks bear about 900."""
LARGEST_PAYLOAD: Final = 2**30
"""Bytes: a document on the stream may hold 2 GiB."""
SUFFIXES: Final = (".json", ".npy", ".pkl", ".payload")
"""Of files that `store` writes."""


Put: TypeAlias = "Callable[[str, bytes], str]"
"""Stores the contents of a file with this suffix; returns its name."""


class Unserialisable(Exception):  # reads as what it says
    """The value cannot be stored in any form; the message is the reason."""


class _NotPlain(Exception):  # never leaves this module
    """The value is not JSON-like."""


class StoredValue(NamedTuple):
    """A returned value for a message: `value`, or the name of the file below the run's folder that holds it. `files`
    are the contents of files that the runner could not write itself.
    """

    value: Any
    value_file: str | None
    metrics: dict[str, float]
    payload: bytes
    files: list[tuple[str, bytes]]


def store(
    returned: Any,
    *,
    folder: Path,
    stem: str,
    payload_inline: bool = False,
    writes: bool = True,
    keeps_tuples: bool = False,
) -> StoredValue:
    """The form of a returned value in a report. With `payload_inline` payloads are part of it, not files; without
    `writes` the contents of files are, too. With `keeps_tuples` a value that holds a tuple is a file, which gives it back as it was.

    Raises Unserialisable, also when a file cannot be written.
    """
    result = returned if isinstance(returned, TaskResult) else TaskResult(returned)
    metrics = _metrics(returned)
    if not isinstance(result.payload, bytes | bytearray | memoryview):
        raise Unserialisable(f"the payload is a {type(result.payload).__name__}, not bytes")
    if len(result.payload) > LARGEST_PAYLOAD:
        raise Unserialisable(f"the payload has {len(result.payload)} bytes, more than {LARGEST_PAYLOAD}")
    unwritten: list[tuple[str, bytes]] = []

    def put(suffix: str, data: bytes) -> str:
        name = f"{stem}{suffix}"
        if writes:
            try:
                write_whole(folder / name, data)
            except OSError as error:
                raise Unserialisable(f"its result cannot be written: {one_line(error)}") from error
        else:
            unwritten.append((name, data))
        return name

    if result.payload and not payload_inline:
        put(".payload", result.payload)
    value, name = _store_value(result.value, put, (list,) if keeps_tuples else (list, tuple))
    return StoredValue(value, name, metrics, result.payload if payload_inline else b"", unwritten)


def load(path: Path) -> Any:
    """The value in a file that `store` wrote."""
    return read(path.read_bytes(), suffix=path.suffix)


def read(data: bytes, *, suffix: str) -> Any:
    """The value in the contents of such a file."""
    match suffix:
        case ".json":
            return msgspec.json.decode(data)
        case ".npy":
            import numpy as np  # noqa: PLC0415  # only where there is an array

            return np.load(io.BytesIO(data), allow_pickle=False)
        case _:
            return pickle.loads(data)  # noqa: S301  # made by a runner of this run


def _store_value(value: Any, put: Put, lists: tuple[type, ...]) -> tuple[Any, str | None]:
    """The value if it is small and JSON-like, or the name of its file. `lists`: the types that become lists."""
    try:
        plain = _plain(value, lists)
        packed = msgspec.msgpack.encode(plain)
    except (_NotPlain, OverflowError, UnicodeEncodeError):
        return None, _store_object(value, put)
    if len(packed) <= INLINE_BYTES:
        return plain, None
    if not _all_finite(plain):  # JSON has no NaN or infinity
        return None, _store_object(plain, put)
    return None, put(".json", msgspec.json.encode(plain))


def _store_object(value: Any, put: Put) -> str:
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray" and not value.dtype.hasobject:
        import numpy as np  # noqa: PLC0415  # the value is an array: numpy is loaded

        buffer = io.BytesIO()
        np.save(buffer, value, allow_pickle=False)
        return put(".npy", buffer.getvalue())
    try:
        pickled = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001  # pickling runs code of the value's classes: anything may come
        pickled = _pickled_by_value(value, error)
    return put(".pkl", pickled)


def _pickled_by_value(value: Any, first: Exception) -> bytes:
    """For objects that pickle refuses because their class cannot be imported; `first` is its error."""
    from ray import cloudpickle  # noqa: PLC0415  # only where it is needed: runners have it, others may have no Ray

    try:
        pickled: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001  # as above
        raise Unserialisable(
            f"the returned {type(value).__name__} cannot be serialised: {type(first).__name__}: {first}"
        ) from first
    return pickled


def is_shallow(plain: Any, levels: int = DEEPEST) -> bool:
    """Whether lists and dicts are nested no deeper than that."""
    if type(plain) is dict:
        return levels > 0 and all(is_shallow(item, levels - 1) for item in plain.values())
    if type(plain) in (list, tuple):
        return levels > 0 and all(is_shallow(item, levels - 1) for item in plain)
    return True


def _plain(value: Any, lists: tuple[type, ...], levels: int = DEEPEST) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if not levels:
        raise _NotPlain
    if type(value) in lists:
        return [_plain(item, lists, levels - 1) for item in value]
    if type(value) is dict:
        if not all(type(name) is str for name in value):
            raise _NotPlain
        return {name: _plain(item, lists, levels - 1) for name, item in value.items()}
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        scalar = value.item()
        if type(scalar) in (bool, int, float, str):
            return scalar
    raise _NotPlain


def _all_finite(plain: Any) -> bool:
    if type(plain) is float:
        return math.isfinite(plain)
    if type(plain) is list:
        return all(map(_all_finite, plain))
    return all(map(_all_finite, plain.values())) if type(plain) is dict else True


def _metrics(returned: Any) -> dict[str, float]:
    """Metrics for the record. A dict of numbers is its own metrics, unless it is too large."""
    if not isinstance(returned, TaskResult):
        return _checked(returned) if type(returned) is dict and _are_metrics(returned) else {}
    metrics = _checked(returned.metrics)
    if not fit_inline(metrics):
        raise Unserialisable(
            f"{len(metrics)} metrics take more than {INLINE_BYTES} bytes: return large data as the value"
        )
    return metrics


def _are_metrics(found: Mapping[Any, Any]) -> bool:
    named = all(type(name) is str and has_utf8(name) and _is_number(item) for name, item in found.items())
    return named and fit_inline(found)


def fit_inline(metrics: Mapping[str, Any]) -> bool:
    """Whether they are small enough for a message, as names and floats of nine bytes."""
    return sum(len(name.encode()) + 9 for name in metrics) <= INLINE_BYTES


def _checked(metrics: Mapping[str, Any]) -> dict[str, float]:
    for name, value in metrics.items():
        if not isinstance(name, str) or not _is_number(value):
            raise Unserialisable(f"metric {name!r} is {value!r}, which is not a number with a name")
        if not has_utf8(name):
            raise Unserialisable(f"the name of metric {name!r} has no UTF-8 form")
    return {name: float(value) for name, value in metrics.items()}


def has_utf8(text: str) -> bool:
    """Whether it can be encoded in a message: a file name, say, may have parts that cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | str | bytes) or value is None:
        return False
    try:
        return isinstance(math.isnan(value), bool)
    except (TypeError, ValueError, OverflowError):
        return False
