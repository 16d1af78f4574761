"""Tensors of torch as bytes, and back: dtype, shape, raw elements.

Rules:
1. Torch is no dependency: it is used only if the user's code has imported it, and imported only to restore a tensor.
2. A tensor is restored as a plain one on the CPU, with its dtype, its shape and its own memory. The device, `requires_grad`
   and shared memory are not stored: `load_state_dict` copies into parameters that have all three.
"""

from __future__ import annotations

import sys
from importlib import import_module
from math import prod
from typing import Any, Final

import msgspec

from governor.episodes.arrays import WireError
from governor.errors import ConductorError
from governor.failures import one_line

_HEADER_SIZE: Final = 2
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, tuple[int, ...]]).decode


def is_tensor(value: object) -> bool:
    torch: Any = sys.modules.get("torch")
    return isinstance(value, getattr(torch, "Tensor", ()))


def pack(tensor: Any) -> bytes:
    """Raises TypeError for a tensor that is not a block of numbers: sparse, quantized, without data."""
    torch: Any = sys.modules["torch"]
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise TypeError(
            f"a tensor of {tensor.dtype}, {tensor.layout} on {tensor.device} is no block of numbers"
        )
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    header = _encode((str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)))
    # As bytes: numpy does not know all types of numbers that torch does, bfloat16 for one
    elements: bytes = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return len(header).to_bytes(_HEADER_SIZE, "little") + header + elements


def unpack(data: memoryview) -> Any:
    """Raises WireError for bytes that are not a tensor, and ConductorError if torch is not installed."""
    try:
        torch: Any = import_module("torch")
    except ImportError as error:
        raise ConductorError(
            f"it holds tensors, and torch does not import here: {one_line(error)}"
        ) from error
    start = _HEADER_SIZE + int.from_bytes(data[:_HEADER_SIZE], "little")
    try:
        name, shape = _decode(data[_HEADER_SIZE:start])
    except msgspec.MsgspecError as error:
        raise WireError(f"a tensor without a header: {error}") from error
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or any(side < 0 for side in shape):
        raise WireError(f"a tensor of {name!r} with shape {shape} is none that this torch knows")
    if prod(shape) * dtype.itemsize != len(data) - start:
        raise WireError(f"{len(data) - start} bytes are no tensor of {name} with shape {shape}")
    if not prod(shape):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data[start:]), dtype=dtype).reshape(shape)
