"""Conversion of values of user code to the form of their space, for a loop that calls environment and agent directly.

Rules:
1. Values and faults are those of `spaces.conformer`, at a third of the cost: an array with the type, dtype and shape of its
   space is only checked for NaN; any other value takes the slow path. (Numpy has one object for each number dtype, unless
   its byte order is foreign.)
2. The sum of floats is NaN if one of them is: a NaN sum, not `isnan().any()` (1.1 µs for 4 floats, the sum 0.12), selects
   the slow path, which decides. Infinities of both signs take it too, and are accepted there.
3. Results share no memory with the given value, as if it had been sent to another process: many environments write their
   next observation over the last one.
4. An observation comes with its bytes, which are recorded: the agent may change the array.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from governor.episodes.spaces import Conformer, Discrete, SpaceSpec, conformer, finite_reward, flag, storage

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEW: Final = 32
"""Up to so many numbers Python's sum is faster than a call of BLAS (0.4 µs)."""

Observer: TypeAlias = Callable[[Any], tuple[Any, Any]]
"""The value, and its encoding for the recorder: int for Discrete, else bytes in C order. Raises ValueError."""

Stepper: TypeAlias = Callable[[Any], tuple[Any, Any, float, bool, bool, Any]]
"""Observation, its encoding, reward, terminated, truncated, and the row of its info, None if none is wanted. Raises ValueError and
what the environment raises.
"""


def copier(spec: SpaceSpec) -> Conformer:
    """A function that copies a value of user code in the form of its space, or raises ValueError."""
    if isinstance(spec, Discrete):
        return conformer(spec)
    observe = _array_observer(spec)
    return lambda value: observe(value)[0]


def observer(spec: SpaceSpec) -> Observer:
    """As `copier`, for observations."""
    if not isinstance(spec, Discrete):
        return _array_observer(spec)
    conform = conformer(spec)

    def observe(value: Any) -> tuple[int, int]:
        number = conform(value)
        return number, number

    return observe


def _array_observer(spec: SpaceSpec) -> Observer:
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


def first_observation(
    environment: Any, seed: int, observed: Observer, read: Callable[[Any], Any] | None = None
) -> tuple[Any, Any, Any]:
    """Resets; the observation, its encoding, and the row of its info. Raises ValueError and what the environment raises."""
    returned = environment.reset(seed=seed)
    try:
        observation, info = returned
    except (TypeError, ValueError):
        raise ValueError("it did not return (observation, info)") from None
    try:
        observation, kept = observed(observation)
    except ValueError as error:
        raise ValueError(f"observation: {error}") from None
    return observation, kept, None if read is None else read(info)


def stepper(
    environment: Any, observed: Observer, *, plain: bool, read: Callable[[Any], Any] | None = None
) -> Stepper:
    """A function that steps `environment` and checks its five values; `plain`: its actions are numbers, not arrays. `read` makes
    a row of an info.
    """
    step = environment.step

    def checked_step(action: Any) -> tuple[Any, Any, float, bool, bool, Any]:
        returned = step(action if plain else action.copy())
        try:
            value, reward, terminated, truncated, info = returned
        except (TypeError, ValueError):
            raise ValueError("it did not return (observation, reward, terminated, truncated, info)") from None
        try:
            observation, kept = observed(value)
        except ValueError as error:
            raise ValueError(f"observation: {error}") from None
        if type(reward) is not float or not isfinite(reward):
            reward = finite_reward(reward)
        if terminated is not False and terminated is not True:
            terminated = flag(terminated, "terminated")
        if truncated is not False and truncated is not True:
            truncated = flag(truncated, "truncated")
        return observation, kept, reward, terminated, truncated, None if read is None else read(info)

    return checked_step
