"""Number arrays in msgpack: dtype, shape, raw little-endian bytes.

Rules:
1. Never pickle: only the kinds of numbers in `KINDS` are sent, in C order; anything else is a TypeError at the sender.
2. A received array is checked before it is used: a buffer that does not match its shape is a WireError.
3. A decoded array owns its memory and is writable.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ARRAY: Final = 1
"""The msgpack extension type of an array."""
KINDS: Final = frozenset("biufc")
MAX_DIMENSIONS: Final = 32
MAX_HEADER: Final = 1024
"""Bytes: more than one of `MAX_DIMENSIONS` has. Headers are remembered."""

_header_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(tuple[int, str, tuple[int, ...]])
_HEADER_SIZE: Final = 2


class WireError(ValueError):
    """A peer sent bytes that are not a valid message."""


def pack(array: NDArray[np.generic]) -> msgspec.msgpack.Ext:
    header, array = parts(array)
    return msgspec.msgpack.Ext(ARRAY, header + array.tobytes())


def parts(array: NDArray[np.generic]) -> tuple[bytes, NDArray[np.generic]]:
    """What precedes the bytes of an array, and the array that has them. Raises TypeError."""
    little, header = _packing(array.dtype, array.shape)
    return header, array if little is array.dtype else array.astype(little, copy=False)


@lru_cache(maxsize=256)  # one for each stream, the same step by step
def _packing(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[np.dtype[Any], bytes]:
    """What is sent of such an array: its type, and the header with its length. Raises TypeError."""
    if dtype.kind not in KINDS:
        raise TypeError(f"an array of {dtype} is not a vector of numbers")
    little = dtype.newbyteorder("<")
    header = _header_encoder.encode((1, little.str, shape))
    return dtype if little == dtype else little, len(header).to_bytes(_HEADER_SIZE, "little") + header


def unpack(data: memoryview) -> NDArray[np.generic]:
    start = _HEADER_SIZE + int.from_bytes(data[:_HEADER_SIZE], "little")
    dtype, shape, size = _unpacking(bytes(data[_HEADER_SIZE : min(start, _HEADER_SIZE + MAX_HEADER)]))
    if size != len(data) - start:
        raise WireError(f"{len(data) - start} bytes are no array of {dtype.str} with shape {shape}")
    return np.ndarray(shape, dtype, bytearray(data[start:]))


@lru_cache(maxsize=256)
def _unpacking(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """The type, shape and bytes of an array with this header. Raises WireError."""
    try:
        _, code, shape = _header_decoder.decode(header)
        dtype = np.dtype(code)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise WireError(f"an array without a header: {error}") from error
    if dtype.kind not in KINDS or len(shape) > MAX_DIMENSIONS or any(side < 0 for side in shape):
        raise WireError(f"an array of {code!r} with shape {shape} is none of ours")
    return dtype, shape, prod(shape) * dtype.itemsize


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
