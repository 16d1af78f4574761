"""Values of tasks: small JSON-like ones travel in the record, others go to files of the run.

Rules:
1. A file appears whole or not at all: written under another name, synced, renamed.
2. JSON-like is None, bool, int of 64 bits, float, str, list, tuple (which becomes a list) and dict with str keys, and
   numpy's scalars. All else is a file: ``.json`` for large JSON-like values, ``.npy`` for arrays, ``.pkl`` for the rest.
3. Files are read by runners of the same run alone; nothing from a socket is unpickled.
"""

from __future__ import annotations

import math
import os
import pickle
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor.tasks.api import TaskResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

INLINE_BYTES: Final = 64 * 1024


class Unserialisable(Exception):  # reads as what it says
    """The value can be kept in no form; the message says why."""


class _NotPlain(Exception):  # never leaves this module
    """The value is not JSON-like."""


def keep(returned: Any, *, folder: Path, stem: str) -> dict[str, Any]:
    """What `wire.Over` says of a returned value: `value` or `value_file` (below `folder`), and `metrics`.

    Raises Unserialisable, or OSError when the file cannot be written.
    """
    result = returned if isinstance(returned, TaskResult) else TaskResult(returned)
    metrics = result.metrics if isinstance(returned, TaskResult) else _numbers(returned)
    kept: dict[str, Any] = {"metrics": _checked(metrics)}
    if result.payload:
        _write(folder / f"{stem}.payload", lambda file: file.write(result.payload))
    try:
        plain = _plain(result.value)
        packed = msgspec.msgpack.encode(plain)
    except (_NotPlain, OverflowError, UnicodeEncodeError):
        return {**kept, "value_file": _keep_object(result.value, folder=folder, stem=stem)}
    except RecursionError:
        raise Unserialisable("the returned value is nested too deeply, or contains itself") from None
    if len(packed) <= INLINE_BYTES:
        return {**kept, "value": plain}
    text = msgspec.json.encode(plain)
    _write(folder / f"{stem}.json", lambda file: file.write(text))
    return {**kept, "value_file": f"{stem}.json"}


def load(path: Path) -> Any:
    """The value in a file that `keep` wrote."""
    match path.suffix:
        case ".json":
            return msgspec.json.decode(path.read_bytes())
        case ".npy":
            import numpy as np  # noqa: PLC0415  # only where there is an array

            return np.load(path, allow_pickle=False)
        case _:
            return pickle.loads(path.read_bytes())  # noqa: S301  # written by a runner of this run


def temporary(path: Path) -> Path:
    """The name under which a file is written before it is whole."""
    return path.with_name(f".{path.name}.part")


def _keep_object(value: Any, *, folder: Path, stem: str) -> str:
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray" and not value.dtype.hasobject:
        import numpy as np  # noqa: PLC0415  # the value is an array: numpy is loaded

        _write(folder / f"{stem}.npy", lambda file: np.save(file, value, allow_pickle=False))
        return f"{stem}.npy"
    try:
        pickled = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # pickling runs code of the value's classes: anything may come
        raise Unserialisable(
            f"the returned {type(value).__name__} cannot be serialised: {type(error).__name__}: {error}"
        ) from error
    _write(folder / f"{stem}.pkl", lambda file: file.write(pickled))
    return f"{stem}.pkl"


def _write(path: Path, write: Callable[[Any], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = temporary(path)
    with part.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return [_plain(item) for item in value]
    if type(value) is dict:
        if not all(type(name) is str for name in value):
            raise _NotPlain
        return {name: _plain(item) for name, item in value.items()}
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        scalar = value.item()
        if type(scalar) in (bool, int, float, str):
            return scalar
    raise _NotPlain


def _numbers(value: Any) -> Mapping[str, float]:
    """A dict of numbers is its own metrics."""
    if type(value) is not dict or not all(
        type(name) is str and _is_number(item) for name, item in value.items()
    ):
        return {}
    return value


def _checked(metrics: Mapping[str, Any]) -> dict[str, float]:
    for name, value in metrics.items():
        if not isinstance(name, str) or not _is_number(value):
            raise Unserialisable(f"metric {name!r} is {value!r}, which is not a number with a name")
    return {name: float(value) for name, value in metrics.items()}


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | str | bytes) or value is None:
        return False
    try:
        return isinstance(math.isnan(value), bool)
    except (TypeError, ValueError, OverflowError):
        return False
