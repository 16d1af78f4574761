"""Values of observations and actions in one form, to compare what an environment returned with what is on record.

Rules:
1. The form of a value is an int, a str, an `Array`, or a dict of forms by name; the items of a tuple are named "0", "1", ...
2. Nothing here uses the code that describes, sends or records spaces: a fault there must not be a fault here, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    import pyarrow as pa

SHORT: Final = 256
"""Bytes of an array that are kept as they are."""


@dataclass(frozen=True, slots=True)
class Array:
    """`data` are its bytes in C order, of a long one their digest."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __repr__(self) -> str:
        if len(self.data) == np.dtype(self.dtype).itemsize * int(np.prod(self.shape)):
            return repr(np.frombuffer(self.data, self.dtype).reshape(self.shape))
        return f"array of {self.dtype} {self.shape}, digest {self.data.hex()}"


def of_array(array: np.ndarray[Any, Any]) -> Array:
    data = array.tobytes()
    if len(data) > SHORT:
        data = blake2b(data, digest_size=16).digest()
    return Array(array.dtype.str, array.shape, data)


def of_space(space: Any, value: Any, *, exact: bool = False) -> Any:
    """A value of user code, in the dtype of its space. `exact`: raises TypeError if it is not yet in the form that agents get."""
    if exact:
        _require(space, value)
    match space:
        case spaces.Discrete():
            return int(value)
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return of_array(np.asarray(value, space.dtype))
        case spaces.Dict():
            return {str(key): of_space(part, value[key], exact=exact) for key, part in space.items()}
        case spaces.Tuple():
            return {
                str(place): of_space(part, one, exact=exact)
                for place, (part, one) in enumerate(zip(space, value, strict=True))
            }
        case _:  # Text, and spaces of texts with rules of their own
            if not isinstance(value, str):
                raise TypeError(f"a value of {space} is a {type(value).__name__}")
            return str(value)


def _require(space: Any, value: Any) -> None:
    match space:
        case spaces.Discrete():
            fits = type(value) is int
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            fits = type(value) is np.ndarray and (value.dtype, value.shape) == (space.dtype, space.shape)
        case spaces.Dict():
            fits = type(value) is dict and [*value] == [*space]
        case spaces.Tuple():
            fits = type(value) is tuple
        case _:
            fits = type(value) is str
    if not fits:
        raise TypeError(f"{value!r:.200} is not in the form of {space!r:.200}")


def of_column(field: pa.Field, column: pa.Array) -> list[Any]:
    """The values of a column of recorded steps; None where it is null."""
    import pyarrow as pa  # not for user code

    kind = field.type
    if pa.types.is_primitive(kind) or pa.types.is_string(kind):
        return column.to_pylist()
    if pa.types.is_fixed_size_list(kind):
        shape = json.loads(field.metadata[b"shape"])
        items = column.drop_null().flatten().to_numpy(zero_copy_only=False)
        return _with_nulls(column, map(of_array, items.reshape(-1, *shape)))
    if pa.types.is_struct(kind):
        parts = [of_column(kind.field(place), part) for place, part in enumerate(column.flatten())]
        names = [one.name for one in kind]
        rows = zip(*parts, strict=True)
        return [
            dict(zip(names, row, strict=True)) if valid else None
            for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)
        ]
    raise TypeError(f"the column {field.name} is of type {kind}")


def _with_nulls(column: pa.Array, values: Any) -> list[Any]:
    values = iter(values)
    return [next(values) if valid else None for valid in column.is_valid().to_pylist()]
