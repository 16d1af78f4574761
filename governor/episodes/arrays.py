"""Number arrays in msgpack: dtype, shape, raw little-endian bytes.

Rules:
1. Never pickle: only the kinds of numbers in `KINDS` are sent, in C order; anything else is a TypeError at the sender.
2. A received array is checked before it is used: a buffer that does not match its shape is a WireError.
3. A decoded array owns its memory and is writable.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ARRAY: Final = 1
"""The msgpack extension type of an array."""
KINDS: Final = frozenset("biufc")
MAX_DIMENSIONS: Final = 32

_header_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(tuple[int, str, tuple[int, ...]])
_HEADER_SIZE: Final = 2


class WireError(ValueError):
    """A peer sent bytes that are not a valid message."""


def pack(array: NDArray[np.generic]) -> msgspec.msgpack.Ext:
    if array.dtype.kind not in KINDS:
        raise TypeError(f"an array of {array.dtype} is not a vector of numbers")
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    header = _header_encoder.encode((1, little.dtype.str, little.shape))
    return msgspec.msgpack.Ext(
        ARRAY, len(header).to_bytes(_HEADER_SIZE, "little") + header + little.tobytes(order="C")
    )


def unpack(data: memoryview) -> NDArray[np.generic]:
    try:
        start = _HEADER_SIZE + int.from_bytes(data[:_HEADER_SIZE], "little")
        _, code, shape = _header_decoder.decode(data[_HEADER_SIZE:start])
        dtype = np.dtype(code)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise WireError(f"an array without a header: {error}") from error
    if dtype.kind not in KINDS or len(shape) > MAX_DIMENSIONS or any(side < 0 for side in shape):
        raise WireError(f"an array of {code!r} with shape {shape} is none of ours")
    if prod(shape) * dtype.itemsize != len(data) - start:
        raise WireError(f"{len(data) - start} bytes are no array of {code} with shape {shape}")
    array: NDArray[np.generic] = np.frombuffer(data[start:], dtype=dtype).reshape(shape).copy()
    return array


def encode_hook(value: object) -> object:
    """For a msgspec encoder: arrays, and numpy's scalars as plain numbers."""
    if isinstance(value, np.ndarray):
        return pack(value)
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    raise TypeError(f"a {type(value).__name__} is neither a number nor a vector of numbers")


def decode_hook(code: int, data: memoryview) -> object:
    if code != ARRAY:
        raise WireError(f"msgpack extension {code} is none of ours")
    return unpack(data)
