"""`spaces.conformer` for a loop that holds environment and agent itself: the same values and faults, at a third of the cost.

Rules:
1. What has the type, dtype and shape of its space already is only looked at for NaN; all else goes the long way. (Of the
   dtypes of numbers numpy has one object each, unless their byte order is foreign.)
2. The sum of floats is NaN if one of them is: that, and not `isnan().any()` (1.1 µs for 4 floats, the sum 0.12), sends
   a value the long way, which decides. Infinities of both signs go it too, and are found to be no fault.
3. What comes back shares no memory with what was given, as if it had crossed to another process: many environments
   write their next observation over the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from governor.episodes.spaces import Conformer, Discrete, MultiBinary, SpaceSpec, conformer

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEW: Final = 32
"""Up to here Python sums the numbers faster than BLAS is called (0.4 µs)."""


def copier(spec: SpaceSpec) -> Conformer:
    """A function that brings a value of user code into the form of its space, in memory of its own, or raises ValueError."""
    slow = conformer(spec)
    if isinstance(spec, Discrete):
        return slow
    dtype = np.dtype(np.int8 if isinstance(spec, MultiBinary) else spec.dtype)
    shape = spec.shape
    real = dtype.kind == "f"
    few = len(shape) == 1 and shape[0] <= FEW
    vdot = np.vdot
    ndarray = np.ndarray

    def copy(value: Any) -> NDArray[Any]:
        if type(value) is ndarray and value.dtype is dtype and value.shape == shape:
            if real:
                total = sum(value.tolist()) if few else vdot(value, value)
                if total != total:  # noqa: PLR0124  # NaN alone differs from itself
                    slow(value)
            return value.copy()
        return slow(value).copy()  # type: ignore[no-any-return]  # an array: the space is not Discrete

    return copy
