"""The saved state of an agent: its `state_dict`, as msgpack with raw arrays.

Rules:
1. No pickle: numbers of any size, strings, bytes, None, lists, tuples, sets, dicts, arrays of numbers and tensors of torch
   (`tensors`). Other objects that convert to such an array are restored as an array.
2. A value that would be restored differently is a TypeError that names its path: also an instance of a derived class, as a
   defaultdict or a named tuple, because it would be restored as its base.
3. The file is complete or absent (`files`). Beside the state it has the version of the weights, and `learned`: plain data as
   the state, of what the agent has learned until then (`governor.episodes.learned`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from governor.episodes.arrays import ARRAY, WireError, pack, unpack
from governor.episodes.records import tensors
from governor.errors import ConductorError
from governor.files import read_regular, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TUPLE: Final = 2
PAIRS: Final = 3
BIG_INT: Final = 4
SET: Final = 5
TENSOR: Final = 6
ORDERED: Final = 7
COUNTER: Final = 8
FROZEN: Final = 9
"""Extension types beside `ARRAY`; PAIRS is a dict with keys that are not all strings."""
_DICTS: Final[dict[type, int]] = {dict: PAIRS, OrderedDict: ORDERED, Counter: COUNTER}
"""Torch uses all of them: in modules, optimizers and schedules of learning rates."""
_SETS: Final[dict[type, int]] = {set: SET, frozenset: FROZEN}
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)
_TEXTS: Final = (str, bytes)
WHOLE: Final = "state_dict()"
LONGEST: Final = 2**32
"""An extension type of msgpack has fewer bytes than this."""
VERSION: Final = 1

_encode = msgspec.msgpack.Encoder().encode


def dumps(state: dict[str, Any], *, weight_version: int = 0, learned: dict[str, Any] | None = None) -> bytes:
    """Raises TypeError that names the path of a value that cannot be stored."""
    if not isinstance(state, dict):
        raise TypeError(f"state_dict() is a {type(state).__name__}, not a dict")
    try:
        kept = _flatten(state, WHOLE)
    except RecursionError:
        raise TypeError(_too_deep_or_circular(state)) from None
    document = {"version": VERSION, "state": kept, "weight_version": weight_version}
    if learned is not None:
        document["learned"] = _flatten(learned, "learned")
    return _encode(document)


def dumps_verified(
    state: dict[str, Any], *, weight_version: int = 0, learned: dict[str, Any] | None = None
) -> bytes:
    """As `dumps`, and checks that the result can be loaded. Raises TypeError if not."""
    data = dumps(state, weight_version=weight_version, learned=learned)
    try:
        same = dumps(loads(data), weight_version=weight_version, learned=learned) == data
    except (ConductorError, TypeError, RecursionError) as error:
        raise TypeError(f"state_dict() cannot be read back: {error}") from error
    if not same:
        raise TypeError("state_dict() would be restored as something else")
    return data


def loads(data: bytes) -> dict[str, Any]:
    """Raises ConductorError for bytes that are not a state file."""
    try:
        document = _decoder.decode(data)
        version, state = document["version"], document["state"]
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConductorError(f"it is no agent's state: {error}") from error
    if version != VERSION or not isinstance(state, dict):
        raise ConductorError(f"it is an agent's state of version {version}; this is version {VERSION}")
    return state


def save(
    path: Path,
    state: dict[str, Any],
    *,
    sync: bool = True,
    weight_version: int = 0,
    verify: bool = False,
    learned: dict[str, Any] | None = None,
) -> None:
    """Raises TypeError (see `dumps`, and with `verify` `dumps_verified`) and OSError. Without `sync` it survives this process, but
    not a loss of power.
    """
    make = dumps_verified if verify else dumps
    write_whole(path, make(state, weight_version=weight_version, learned=learned), sync=sync)


def load(path: Path) -> dict[str, Any] | None:
    """None without a file. Raises ConductorError for a file that cannot be read."""
    try:
        return loads(read_regular(path))
    except FileNotFoundError:
        return None
    except (OSError, ConductorError) as error:
        raise ConductorError(f"the agent's state {path} cannot be read: {error}") from error


def initial_state(path: Path, given: str | None) -> dict[str, Any] | None:
    """The state that an agent begins from: its saved state in this run, else the file `given` in the run file.

    Raises ConductorError for a file that cannot be read, and for a given file that does not exist.
    """
    state = load(path)
    if state is None and given is not None:
        state = load(Path(given))
        if state is None:
            raise ConductorError(f"the agent's state {given} is not there")
    return state


def copy(path: Path, *, saved: Path, name: str) -> None:
    """Copies the `saved` state of an agent. Raises ConductorError if there is none, and as `save`."""
    state = load(saved)
    if state is None:
        raise ConductorError(f"{name} has no state yet")
    save(path, state, weight_version=weight_version(saved))


def weight_version(path: Path, given: str | None = None) -> int:
    """The version of the weights in the file that `initial_state` takes; 0 without a file or a version."""
    if given is not None and not path.exists():
        path = Path(given)
    try:
        found = _decode_version(read_regular(path))
    except (OSError, msgspec.MsgspecError):
        return 0
    return found.weight_version


def learned(path: Path) -> dict[str, Any] | None:
    """What the file says of what was learned; empty if it says nothing, None without a file. Raises ConductorError."""
    try:
        return _decode_learned(read_regular(path)).learned
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise ConductorError(f"the agent's state {path} cannot be read: {error}") from error


class _Versioned(msgspec.Struct):
    weight_version: int = 0


class _Learned(msgspec.Struct):
    learned: dict[str, Any] = {}


def _flatten(value: Any, location: str) -> Any:
    if value is None or isinstance(value, bool) or type(value) in _TEXTS:
        return value
    if isinstance(value, _TEXTS):
        raise _derived(value, location, _TEXTS)
    if isinstance(value, int):
        return _integer(int(value))
    if isinstance(value, float):
        return float(value)
    if isinstance(value, _CONTAINERS):
        return _flatten_container(value, location)
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return _flatten(value.item(), location)
    if hasattr(value, "__array__"):
        return _packed(value, location)
    raise TypeError(f"{location} is a {type(value).__name__}, which cannot be saved")


def _flatten_container(value: Any, location: str) -> Any:
    made = type(value)
    if made is dict and all(type(key) is str for key in value):
        return {key: _flatten(item, f"{location}[{key!r}]") for key, item in value.items()}
    if made in _DICTS:
        pairs = [
            [_flatten_key(key, location), _flatten(item, f"{location}[{key!r}]")]
            for key, item in value.items()
        ]
        return _extension(_DICTS[made], pairs, location)
    if made in _SETS:
        # Sorted, because a set has no order, but its bytes have
        items = sorted(_encode(_flatten_key(item, location)) for item in value)
        return _extension(_SETS[made], [msgspec.Raw(item) for item in items], location)
    items = [_flatten(item, f"{location}[{i}]") for i, item in enumerate(value)]
    if made is list:
        return items
    if made is tuple or (made.__module__, made.__name__) == ("torch", "Size"):
        return _extension(TUPLE, items, location)
    raise _derived(value, location, _CONTAINERS)


def _derived(value: Any, location: str, bases: tuple[type, ...]) -> TypeError:
    made, base = type(value).__name__, next(each for each in bases if isinstance(value, each)).__name__
    return TypeError(
        f"{location} is a {made}, which would be restored as a {base}: keep a plain {base}, and make it a "
        f"{made} again in load_state_dict"
    )


def _too_deep_or_circular(state: dict[str, Any]) -> str:
    """The path where a state contains itself, else where it is too deep. Without recursion; paths are made for the answer only."""
    path, level_of, walked = [_Level(None, state)], {id(state): 0}, set[int]()
    deepest, below = 0, path[:]
    while path:
        found = next(path[-1].rest, None)
        if found is None:
            done = id(path.pop().value)
            walked.add(done)
            del level_of[done]
            continue
        key, value = found
        if (level := level_of.get(id(value))) is not None:
            around = _location(path[: level + 1])
            return (
                f"{_location(path)}[{key!r}] is {around} itself: a state that contains itself cannot be saved"
            )
        if isinstance(value, _CONTAINERS) and id(value) not in walked:
            level_of[id(value)] = len(path)
            path.append(_Level(key, value))
            if len(path) > deepest:
                deepest, below = len(path), path[:2]
    return f"{_location(below)} is nested {deepest - 1:,} levels deep, which cannot be saved"


class _Level:
    """A container on the path into a state, and its items that are still to be walked; keys cannot contain their container."""

    def __init__(self, key: Any, value: Any) -> None:
        self.key = key
        self.value = value
        self.rest: Iterator[tuple[Any, Any]] = iter(
            value.items() if isinstance(value, dict) else enumerate(value)
        )


def _location(path: list[_Level]) -> str:
    return WHOLE + "".join(f"[{level.key!r}]" for level in path[1:])


def _flatten_key(value: Any, location: str) -> Any:
    if tensors.is_tensor(value):
        raise TypeError(f"{location} has a {type(value).__name__} as a key, which no other one equals")
    return _flatten(value, f"{location} key")


def _integer(value: int) -> int | msgspec.msgpack.Ext:
    if -(2**63) <= value < 2**64:
        return value
    size = value.bit_length() // 8 + 1
    return msgspec.msgpack.Ext(BIG_INT, value.to_bytes(size, "little", signed=True))


def _packed(value: Any, location: str) -> msgspec.msgpack.Ext:
    try:
        if tensors.is_tensor(value):
            return _extension(TENSOR, tensors.pack(value), location)
        return pack(np.asarray(value))
    except TypeError as error:
        raise TypeError(f"{location}: {error}") from error


def _extension(code: int, content: bytes | list[Any], location: str) -> msgspec.msgpack.Ext:
    data = content if isinstance(content, bytes) else _encode(content)
    if len(data) >= LONGEST:
        raise TypeError(f"{location} takes {len(data):,} bytes; one array, tensor or mapping can have 4 GiB")
    return msgspec.msgpack.Ext(code, data)


def _restore(code: int, data: memoryview) -> Any:
    if code == ARRAY:
        return unpack(data)
    if code == TENSOR:
        return tensors.unpack(data)
    if code == BIG_INT:
        return int.from_bytes(data, "little", signed=True)
    if code not in _MADE:
        raise WireError(f"msgpack extension {code} is none of ours")
    return _MADE[code](_decoder.decode(data))


def _dict(pairs: Any) -> dict[Any, Any]:
    return {key: item for key, item in pairs}  # noqa: C416  # dict() would take pairs of any length


_MADE: Final[dict[int, Callable[[Any], Any]]] = {
    TUPLE: tuple,
    PAIRS: _dict,
    ORDERED: lambda pairs: OrderedDict(_dict(pairs)),
    COUNTER: lambda pairs: Counter(_dict(pairs)),
    SET: set,
    FROZEN: frozenset,
}
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_restore)
_decode_version = msgspec.msgpack.Decoder(_Versioned).decode
_decode_learned = msgspec.msgpack.Decoder(_Learned, ext_hook=_restore).decode
