"""What an environment returns, for a loop that calls it directly: five values, each checked, the observation with its encoding.

`stepper` looks at an array of one dimension, the observation of most environments, itself: a call and a sum of its numbers would take
longer than all of its other checks. The last byte of a NaN of 32 or 64 bits is 127 or 255 (its sign, and the first bits of its exponent),
so an array without such a number holds none; any other takes the way of `Observer`, which decides.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from governor.episodes.spaces import is_array, named, storage

if TYPE_CHECKING:
    from governor.episodes.spaces import Observer, SpaceSpec

Stepper: TypeAlias = Callable[[Any], tuple[Any, Any, float, bool, bool, Any]]
"""Observation, its encoding, reward, terminated, truncated, and the row of its info, None if none is wanted. Raises ValueError and
what the environment raises.
"""


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
        raise named("observation", error) from None
    return observation, kept, None if read is None else read(info)


def stepper(
    environment: Any,
    observed: Observer,
    *,
    copied: Callable[[Any], Any] | None,
    read: Callable[[Any], Any] | None = None,
    of: SpaceSpec | None = None,
) -> Stepper:
    """A function that steps `environment` and checks its five values. `copied` copies an action, None for plain ones. `read` makes
    a row of an info. `of` is the space that `observed` is for, where steps should take the short way.
    """
    step, ndarray = environment.step, np.ndarray
    dtype, size, width = _row(of)
    last = width - 1

    def checked_step(action: Any) -> tuple[Any, Any, float, bool, bool, Any]:
        returned = step(action if copied is None else copied(action))
        try:
            value, reward, terminated, truncated, info = returned
        except (TypeError, ValueError):
            raise ValueError("it did not return (observation, reward, terminated, truncated, info)") from None
        if (
            value.__class__ is ndarray
            and value.dtype is dtype
            and value.ndim == 1
            and len(kept := value.tobytes()) == size
            and (
                not (127 in kept or 255 in kept)  # most arrays of a few numbers
                or not (127 in (exponents := kept[last::width]) or 255 in exponents)
            )
        ):
            observation = value.copy()
        else:
            try:
                observation, kept = observed(value)
            except ValueError as error:
                raise named("observation", error) from None
        if reward.__class__ is not float or not -inf < reward < inf:
            reward = finite_reward(reward)
        if terminated is not False or truncated is not False:
            terminated, truncated = flag(terminated, "terminated"), flag(truncated, "truncated")
        return observation, kept, reward, terminated, truncated, None if read is None else read(info)

    return checked_step


def _row(spec: SpaceSpec | None) -> tuple[np.dtype[Any] | None, int, int]:
    """Of arrays that have one dimension and floats of 32 or 64 bits, little-endian: their dtype, bytes in all and of a number; others
    have no dtype here.
    """
    if spec is not None and is_array(spec):
        dtype, shape = storage(spec)
        if len(shape) == 1 and dtype.char in "fd" and dtype.newbyteorder("<") == dtype:
            return dtype, dtype.itemsize * shape[0], dtype.itemsize
    return None, 0, 1


def finite_reward(value: Any) -> float:
    """Raises ValueError in one line."""
    if type(value) is float and isfinite(value):
        return value
    try:
        reward = None if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        reward = None
    if reward is None:
        raise ValueError(f"the reward is a {type(value).__name__}, not a number")
    if not isfinite(reward):
        raise ValueError(f"the reward is {reward}")
    return reward


def flag(value: Any, name: str) -> bool:
    """`terminated` or `truncated` of an environment. Raises ValueError in one line."""
    if value is True or value is False:
        return bool(value)
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biu":
        raise ValueError(f"{name} is a {type(value).__name__}, not a bool")
    return bool(array.reshape(())[()])
