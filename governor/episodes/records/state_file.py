"""What an agent has learned, kept in a file: its `state_dict`, as msgpack with raw arrays.

Rules:
1. No pickle: numbers of any size, strings, bytes, None, lists, tuples, sets, dicts and arrays of numbers; whatever
   converts to such an array (a tensor on the CPU) comes back as an array. Anything else is a TypeError with its place.
2. The file is whole or absent (`files`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from governor.episodes.arrays import ARRAY, WireError, pack, unpack
from governor.errors import ConductorError
from governor.files import write_whole

TUPLE: Final = 2
PAIRS: Final = 3
BIG_INT: Final = 4
SET: Final = 5
"""Extension types beside `ARRAY`; PAIRS is a dict with keys that are not all strings."""
VERSION: Final = 1

_encode = msgspec.msgpack.Encoder().encode


def dumps(state: dict[str, Any], *, weight_version: int = 0) -> bytes:
    """Raises TypeError that names the place of what cannot be kept."""
    kept = _flatten(state, "state_dict()")
    return _encode({"version": VERSION, "state": kept, "weight_version": weight_version})


def loads(data: bytes) -> dict[str, Any]:
    """Raises ConductorError for bytes that are no state file."""
    try:
        document = _decoder.decode(data)
        version, state = document["version"], document["state"]
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConductorError(f"it is no agent's state: {error}") from error
    if version != VERSION or not isinstance(state, dict):
        raise ConductorError(f"it is an agent's state of version {version}; this is version {VERSION}")
    return state


def save(path: Path, state: dict[str, Any], *, sync: bool = True, weight_version: int = 0) -> None:
    """Raises TypeError (see `dumps`) and OSError. Without `sync` it outlives this process, but not a loss of power."""
    write_whole(path, dumps(state, weight_version=weight_version), sync=sync)


def load(path: Path) -> dict[str, Any] | None:
    """None when there is none. Raises ConductorError for a file that cannot be read."""
    try:
        return loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ConductorError) as error:
        raise ConductorError(f"the agent's state {path} cannot be read: {error}") from error


def first(path: Path, given: str | None) -> dict[str, Any] | None:
    """What an agent begins from: what it learned in this run, else the file that the run file gives it.

    Raises ConductorError for a file that cannot be read, and for a given one that is not there.
    """
    state = load(path)
    if state is None and given is not None:
        state = load(Path(given))
        if state is None:
            raise ConductorError(f"the agent's state {given} is not there")
    return state


def copy(path: Path, *, saved: Path, name: str) -> None:
    """What an agent `saved`, at another place. Raises ConductorError where there is none, and as `save`."""
    state = load(saved)
    if state is None:
        raise ConductorError(f"{name} has no state yet")
    save(path, state, weight_version=weight_version(saved))


def weight_version(path: Path, given: str | None = None) -> int:
    """The version of the weights in the file that `first` takes; 0 where there is none, or it does not say."""
    if given is not None and not path.exists():
        path = Path(given)
    try:
        found = _decode_version(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return 0
    return found.weight_version


class _Versioned(msgspec.Struct):
    weight_version: int = 0


def _flatten(value: Any, place: str) -> Any:
    if value is None or isinstance(value, (bool, str, bytes)):
        return value
    if isinstance(value, int):
        return _integer(int(value))
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return _flatten_container(value, place)
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return _flatten(value.item(), place)
    if hasattr(value, "__array__"):
        return _packed(value, place)
    raise TypeError(f"{place} is a {type(value).__name__}, which cannot be kept")


def _flatten_container(value: Any, place: str) -> Any:
    match value:
        case list():
            return [_flatten(item, f"{place}[{i}]") for i, item in enumerate(value)]
        case tuple():
            return _extension(TUPLE, [_flatten(item, f"{place}[{i}]") for i, item in enumerate(value)])
        case dict() if all(type(key) is str for key in value):
            return {key: _flatten(item, f"{place}[{key!r}]") for key, item in value.items()}
        case dict():
            pairs = [
                [_flatten(key, f"{place} key"), _flatten(item, f"{place}[{key!r}]")]
                for key, item in value.items()
            ]
            return _extension(PAIRS, pairs)
        case _:
            return _extension(SET, [_flatten(item, f"{place}{{}}") for item in value])


def _integer(value: int) -> int | msgspec.msgpack.Ext:
    if -(2**63) <= value < 2**64:
        return value
    size = value.bit_length() // 8 + 1
    return msgspec.msgpack.Ext(BIG_INT, value.to_bytes(size, "little", signed=True))


def _packed(value: Any, place: str) -> msgspec.msgpack.Ext:
    try:
        return pack(np.asarray(value))
    except TypeError as error:
        raise TypeError(f"{place}: {error}") from error


def _extension(code: int, items: list[Any]) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, _encode(items))


def _restore(code: int, data: memoryview) -> Any:
    if code == ARRAY:
        return unpack(data)
    if code == BIG_INT:
        return int.from_bytes(data, "little", signed=True)
    items = _decoder.decode(data)
    if code == TUPLE:
        return tuple(items)
    if code == SET:
        return set(items)
    if code == PAIRS:
        return {key: item for key, item in items}  # noqa: C416  # dict() would take pairs of any length
    raise WireError(f"msgpack extension {code} is none of ours")


_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_restore)
_decode_version = msgspec.msgpack.Decoder(_Versioned).decode
