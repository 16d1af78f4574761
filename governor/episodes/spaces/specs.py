"""Spaces of observations and actions as plain data: what is sent to another process, and what the other modules work with."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import numpy as np

from governor.errors import ConductorError

if TYPE_CHECKING:
    import gymnasium
    from numpy.typing import NDArray

LONGEST_TEXT: Final = 4096
"""Of the gymnasium space that an agent gets for texts without a rule."""


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


class Text(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`characters` are those that may occur, in their order; None for any text: a space of texts with rules of its own, as that of
    MiniGrid's missions.
    """

    min_length: int = 0
    max_length: int = 0
    characters: str | None = None


class Dict(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`keys` in the order of the space, each with its item of `spaces`."""

    keys: tuple[str | int, ...]
    spaces: tuple[SpaceSpec, ...]


class Tuple(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    spaces: tuple[SpaceSpec, ...]


class Sequence(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Any number of values of `feature`: a tuple of them, or with `stack` their batch (`batches`)."""

    feature: SpaceSpec
    stack: bool


class Graph(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    nodes: SpaceSpec
    edges: SpaceSpec | None


class OneOf(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    spaces: tuple[SpaceSpec, ...]


Array: TypeAlias = Box | MultiDiscrete | MultiBinary
Numbers: TypeAlias = Discrete | Array
Composite: TypeAlias = Dict | Tuple | Sequence | Graph | OneOf
SpaceSpec: TypeAlias = Numbers | Text | Composite


def describe(space: object, *, role: str) -> SpaceSpec:  # noqa: C901, PLR0911  # one for each kind
    """`role` is ``observation_space`` or ``action_space``, for the message of the ConductorError."""
    from gymnasium import spaces  # noqa: PLC0415  # 0.2 s, which the simulation controller never pays

    match space:
        case spaces.Discrete() | spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return _numbers(space)
        case spaces.Text():
            return Text(
                min_length=space.min_length,
                max_length=space.max_length,
                characters=_encodable(space.characters, role),
            )
        case spaces.Dict():
            keys = tuple(_key(key, role) for key in space.spaces)
            if len({str(key) for key in keys}) < len(keys):
                raise ConductorError(f"{role}: two of the keys {keys} have the same text")
            return Dict(
                keys=keys,
                spaces=tuple(describe(part, role=role + step(key)) for key, part in space.spaces.items()),
            )
        case spaces.Tuple():
            return Tuple(spaces=_parts(space.spaces, role))
        case spaces.OneOf():
            return OneOf(spaces=_parts(space.spaces, role))
        case spaces.Sequence():
            return Sequence(feature=describe(space.feature_space, role=f"{role}[]"), stack=bool(space.stack))
        case spaces.Graph():
            edges = space.edge_space
            return Graph(
                nodes=describe(space.node_space, role=f"{role}.nodes"),
                edges=None if edges is None else describe(edges, role=f"{role}.edges"),
            )
        case spaces.Space():
            if space.dtype is not None and np.issubdtype(space.dtype, np.str_):
                return Text()
            raise ConductorError(
                f"{role}: {type(space).__name__} is none of gymnasium's own spaces: use those"
            )
        case _ if callable(space):
            raise ConductorError(
                f"{role} is a method, as of an environment of several players, which has possible_agents too"
            )
        case _:
            raise ConductorError(f"{role} is a {type(space).__name__}, not a gymnasium space")


def _numbers(space: Any) -> Numbers:
    from gymnasium import spaces  # noqa: PLC0415  # as above

    shape = tuple(space.shape)
    match space:
        case spaces.Discrete():
            return Discrete(n=int(space.n), start=int(space.start))
        case spaces.Box():
            code = np.dtype(space.dtype).newbyteorder("<").str
            return Box(
                shape=shape,
                dtype=code,
                low=np.asarray(space.low, dtype=code).tobytes(),
                high=np.asarray(space.high, dtype=code).tobytes(),
            )
        case spaces.MultiDiscrete():
            return MultiDiscrete(
                shape=shape,
                dtype=np.dtype(space.dtype).newbyteorder("<").str,
                nvec=tuple(int(n) for n in space.nvec.flat),
                start=tuple(int(n) for n in space.start.flat),
            )
        case _:
            return MultiBinary(shape=shape)


def _parts(parts: tuple[Any, ...], role: str) -> tuple[SpaceSpec, ...]:
    return tuple(describe(part, role=role + step(place)) for place, part in enumerate(parts))


def _key(key: object, role: str) -> str | int:
    if isinstance(key, str):
        return _encodable(str(key), role)
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return int(key)
    raise ConductorError(
        f"{role}: the key {key!r} is of type {type(key).__name__}: keys must be texts or integers"
    )


def _encodable(text: str, role: str) -> str:
    """Raises ConductorError for a text that UTF-8 cannot have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConductorError(f"{role}: {ascii(text)[:60]} has characters that UTF-8 cannot encode") from None
    return text


def step(key: str | int) -> str:
    """From a value to one inside, for messages: ``["image"]``, ``[0]``."""
    return f'["{key}"]' if isinstance(key, str) else f"[{key}]"


def of_environment(environment: Any, *, entry: str) -> tuple[SpaceSpec, SpaceSpec]:
    """Its spaces of observations and actions; `entry` is for the message of the ConductorError."""
    try:
        return (
            describe(environment.observation_space, role="observation_space"),
            describe(environment.action_space, role="action_space"),
        )
    except ConductorError as error:
        raise ConductorError(f"environment {entry!r}: {error.reason}") from error


def build(spec: SpaceSpec, *, seed: int | None = None) -> gymnasium.Space[Any]:  # noqa: C901, PLR0911  # one for each kind
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
        case Text(characters=None):
            return spaces.Text(LONGEST_TEXT, min_length=0, charset=PRINTABLE, seed=seed)
        case Text():
            return spaces.Text(
                spec.max_length, min_length=spec.min_length, charset=spec.characters or "", seed=seed
            )
        case Dict():
            parts = zip(spec.keys, map(build, spec.spaces), strict=True)
            return spaces.Dict(OrderedDict(parts), seed=seed)  # type: ignore[arg-type]  # keys may be integers
        case Tuple():
            return spaces.Tuple(map(build, spec.spaces), seed=seed)
        case OneOf():
            return spaces.OneOf(map(build, spec.spaces), seed=seed)
        case Sequence():
            return spaces.Sequence(build(spec.feature), stack=spec.stack, seed=seed)
        case Graph():
            edges = None if spec.edges is None else build(spec.edges)
            return spaces.Graph(build(spec.nodes), edges, seed=seed)


PRINTABLE: Final = "".join(map(chr, range(32, 127)))


def storage(spec: Numbers) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype and shape in which a value is sent and recorded."""
    match spec:
        case Discrete():
            return np.dtype(np.int64), ()
        case Box() | MultiDiscrete():
            return np.dtype(spec.dtype), spec.shape
        case MultiBinary():
            return np.dtype(np.int8), spec.shape
