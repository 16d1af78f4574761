"""Values of user code in the form of their space, checked and copied, with their encodings.

Rules:
1. Values and faults are those of `conformer`, at a third of the cost: an array with the type, dtype and shape of its space is
   only checked for NaN; any other value takes the slow path. (Numpy has one object for each number dtype, unless its byte
   order is foreign.)
2. The sum of floats is NaN if one of them is: a NaN sum, not `isnan().any()` (1.1 µs for 4 floats, the sum 0.12), selects
   the slow path, which decides. Infinities of both signs take it too, and are accepted there.
3. Results share no memory with the given value, as if it had been sent to another process: many environments write their
   next observation over the last one.
4. An observation comes with its encoding, which is recorded: the agent may change the array.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from governor.episodes.spaces import composites
from governor.episodes.spaces.conformers import Misfit, conformer, named
from governor.episodes.spaces.specs import Box, Discrete, MultiBinary, MultiDiscrete, Text, storage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from governor.episodes.spaces.conformers import Conformer
    from governor.episodes.spaces.specs import Array, SpaceSpec

FEW: Final = 32
"""Up to so many numbers Python's sum is faster than a call of BLAS (0.4 µs)."""

Observer: TypeAlias = Callable[[Any], tuple[Any, Any]]
"""The value, and its encoding (`encodings`). Raises ValueError."""


def copier(spec: SpaceSpec) -> Conformer:
    """A function that copies an action of user code in the form of its space, or raises ValueError."""
    if isinstance(spec, Discrete):
        return conformer(spec)
    observe = observer(spec)

    def copy(value: Any) -> Any:
        try:
            return observe(value)[0]
        except Misfit as error:
            raise named("action", error) from None

    return copy


def observer(spec: SpaceSpec) -> Observer:
    """As `copier`, for observations."""
    match spec:
        case Box() | MultiDiscrete() | MultiBinary():
            return _array_observer(spec)
        case Discrete() | Text():
            return _plain_observer(conformer(spec))
        case _:
            return composites.observer(spec, part=observer)


def _plain_observer(conform: Conformer) -> Observer:
    def observe(value: Any) -> tuple[Any, Any]:
        plain = conform(value)
        return plain, plain

    return observe


def _array_observer(spec: Array) -> Observer:
    slow = conformer(spec)
    dtype, shape = storage(spec)
    real = dtype.kind == "f"
    few = real and len(shape) == 1 and shape[0] <= FEW and dtype.char in "efd"
    numbers = Struct(f"{shape[0]}{dtype.char}").unpack if few else None
    vdot, ndarray = np.vdot, np.ndarray

    def observe(value: Any) -> tuple[NDArray[Any], bytes]:
        if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
            value = slow(value)
            return value.copy(), value.tobytes()
        kept = value.tobytes()
        if real:
            total = sum(numbers(kept)) if numbers is not None else vdot(value, value)
            if total != total:  # noqa: PLR0124  # NaN alone differs from itself
                slow(value)
        return value.copy(), kept

    return observe
