"""Spaces of observations and actions as plain data, so that they can be sent to an agent in another process.

Rules:
1. Discrete, Box, MultiDiscrete and MultiBinary are supported; any other space is a ConductorError that names it.
2. A `Conformer` converts a value of user code to the form that is sent and recorded: a plain int for Discrete, else an array
   of the space's dtype and shape. A value of another kind is a ValueError in one line.
3. Bounds of a Box are not enforced (many environments clip); NaN in an observation, an action or a reward is refused.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from governor.errors import ConductorError

if TYPE_CHECKING:
    import gymnasium
    from numpy.typing import NDArray

Conformer: TypeAlias = Callable[[Any], Any]


class Discrete(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The `n` integers from `start` on. Values are int, recorded as int64."""

    n: int
    start: int


class Box(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`low` and `high` are raw little-endian bytes of `dtype` in C order."""

    shape: tuple[int, ...]
    dtype: str
    low: bytes
    high: bytes


class MultiDiscrete(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    shape: tuple[int, ...]
    dtype: str
    nvec: tuple[int, ...]
    start: tuple[int, ...]


class MultiBinary(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    shape: tuple[int, ...]


SpaceSpec: TypeAlias = Discrete | Box | MultiDiscrete | MultiBinary


def describe(space: object, *, role: str) -> SpaceSpec:
    """`role` is ``observation_space`` or ``action_space``, for the message of the ConductorError."""
    from gymnasium import spaces  # noqa: PLC0415  # 0.2 s, which the simulation controller never pays

    match space:
        case spaces.Discrete():
            return Discrete(n=int(space.n), start=int(space.start))
        case spaces.Box():
            code = np.dtype(space.dtype).newbyteorder("<").str
            return Box(
                shape=tuple(space.shape),
                dtype=code,
                low=np.asarray(space.low, dtype=code).tobytes(),
                high=np.asarray(space.high, dtype=code).tobytes(),
            )
        case spaces.MultiDiscrete():
            return MultiDiscrete(
                shape=tuple(space.shape),
                dtype=np.dtype(space.dtype).newbyteorder("<").str,
                nvec=tuple(int(n) for n in space.nvec.flat),
                start=tuple(int(n) for n in space.start.flat),
            )
        case spaces.MultiBinary():
            return MultiBinary(shape=tuple(space.shape))
        case spaces.Space():
            raise ConductorError(
                f"{role}: {type(space).__name__} is not supported; use Discrete, Box, MultiDiscrete or MultiBinary"
            )
        case _ if callable(space):
            raise ConductorError(
                f"{role} is a method, as of an environment of several players: that needs transport: in_process"
            )
        case _:
            raise ConductorError(f"{role} is a {type(space).__name__}, not a gymnasium space")


def of_environment(environment: Any, *, entry: str) -> tuple[SpaceSpec, SpaceSpec]:
    """Its spaces of observations and actions; `entry` is for the message of the ConductorError."""
    try:
        return (
            describe(environment.observation_space, role="observation_space"),
            describe(environment.action_space, role="action_space"),
        )
    except ConductorError as error:
        raise ConductorError(f"environment {entry!r}: {error.reason}") from error


def summary(spec: SpaceSpec) -> str:
    """A short text for messages, also for a Box whose elements have bounds of their own."""
    match spec:
        case Box():
            dtype = np.dtype(spec.dtype)
            low, high = np.frombuffer(spec.low, dtype=dtype), np.frombuffer(spec.high, dtype=dtype)
            span = f"{low.min():g} to {high.max():g}, " if low.size else ""
            return f"Box({span}{spec.shape}, {dtype.name})"
        case MultiDiscrete():
            return f"MultiDiscrete({reprlib.repr(spec.nvec)}, {spec.shape}, start={reprlib.repr(spec.start)})"
        case _:
            return repr(spec)


def require_same(built: tuple[SpaceSpec, SpaceSpec], given: tuple[SpaceSpec, SpaceSpec], *, of: str) -> None:
    """Raises ConductorError if the agent `of` that name was built for other spaces, (observation, action), than it is given."""
    if built != given:
        raise ConductorError(f"{of} was built for other spaces: {difference(built, given)}")


def difference(built: tuple[SpaceSpec, SpaceSpec], given: tuple[SpaceSpec, SpaceSpec]) -> str:
    """The difference between the spaces that an agent was built for and those that it is given, as (observation, action)."""
    parts = []
    for what, old, new in zip(("observations", "actions"), built, given, strict=True):
        if old != new:
            before, now = summary(old), summary(new)
            now = "the same with other bounds" if now == before else now
            parts.append(f"{what} of {before}, and gets {now}")
    return "; ".join(parts)


def build(spec: SpaceSpec, *, seed: int | None = None) -> gymnasium.Space[Any]:
    """The gymnasium space that `spec` describes."""
    from gymnasium import spaces  # noqa: PLC0415  # as above

    match spec:
        case Discrete():
            return spaces.Discrete(spec.n, start=spec.start, seed=seed)
        case Box():
            dtype = np.dtype(spec.dtype)
            low: NDArray[Any] = np.frombuffer(spec.low, dtype=dtype).reshape(spec.shape)
            high: NDArray[Any] = np.frombuffer(spec.high, dtype=dtype).reshape(spec.shape)
            return spaces.Box(low, high, shape=spec.shape, dtype=dtype.type, seed=seed)
        case MultiDiscrete():
            nvec = np.array(spec.nvec, dtype=spec.dtype).reshape(spec.shape)
            start = np.array(spec.start, dtype=spec.dtype).reshape(spec.shape)
            return spaces.MultiDiscrete(nvec, dtype=np.dtype(spec.dtype).type, seed=seed, start=start)
        case MultiBinary():
            return spaces.MultiBinary(spec.shape if len(spec.shape) != 1 else spec.shape[0], seed=seed)


def blank(spec: SpaceSpec) -> Any:
    """A zero value in the form that is sent."""
    dtype, shape = storage(spec)
    return 0 if isinstance(spec, Discrete) else np.zeros(shape, dtype)


def storage(spec: SpaceSpec) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype and shape in which a value is sent and recorded."""
    match spec:
        case Discrete():
            return np.dtype(np.int64), ()
        case Box() | MultiDiscrete():
            return np.dtype(spec.dtype), spec.shape
        case MultiBinary():
            return np.dtype(np.int8), spec.shape


def conformer(spec: SpaceSpec) -> Conformer:
    """A function that converts a value of user code to the form that is sent, or raises ValueError."""
    return _discrete(spec) if isinstance(spec, Discrete) else _array(*storage(spec))


def _discrete(spec: Discrete) -> Conformer:
    start, stop = spec.start, spec.start + spec.n

    def conform(value: Any) -> int:
        if type(value) is not int:
            value = int(value) if isinstance(value, np.integer) else _integer(value)
        if not start <= value < stop:
            raise ValueError(f"{value} is not in Discrete({spec.n}{f', start={start}' if start else ''})")
        return value  # type: ignore[no-any-return]  # an int by the line above

    return conform


def _integer(value: Any) -> int:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{_short(value)} is no integer")
    return int(array.reshape(())[()])


def _array(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Conformer:
    real = dtype.kind == "f"

    def conform(value: Any) -> NDArray[Any]:
        try:
            array = np.asarray(value)
            if array.dtype != dtype:
                array = _cast(array, dtype)
        except (TypeError, OverflowError) as error:
            raise ValueError(f"{_short(value)} is no array of {dtype}: {error}") from error
        if array.shape != shape:
            raise ValueError(f"shape {array.shape} where the space has {shape}")
        if real and np.isnan(array).any():
            raise ValueError("it holds NaN")
        return array

    return conform


def _cast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "biuf":
        return array.astype(dtype, casting="same_kind")
    with np.errstate(invalid="ignore"):
        cast: NDArray[Any] = array.astype(dtype, casting="unsafe")
    if dtype.kind in "iub" and not np.equal(cast, array).all():
        raise ValueError(
            f"an array of {array.dtype} with fractions, or beyond the range, where the space has {dtype}"
        )
    return cast


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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
