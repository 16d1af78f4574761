"""The encoding of a value: what is recorded of it, and what is sent of a value with parts. It has no names: both sides know the space.

An int for Discrete, a str for Text, bytes in C order for an array. A tuple of encodings for Dict and Tuple, in the order of the
space; (index, encoding) for OneOf. For a Sequence of numbers and for the nodes, edges and edge_links of a Graph (count, bytes of
all), of other spaces a tuple of encodings; (nodes, edges, edge_links) for Graph, None for edges that are not there. Where it has
crossed a socket, a tuple is a list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from governor.episodes.spaces.batches import stack
from governor.episodes.spaces.composites import LINKS, NUMBERS
from governor.episodes.spaces.observing import observer
from governor.episodes.spaces.specs import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
    storage,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from governor.episodes.spaces.specs import Array, Composite, Numbers, SpaceSpec

Convert: TypeAlias = Callable[[Any], Any]


def is_array(spec: SpaceSpec) -> TypeGuard[Array]:
    return isinstance(spec, Box | MultiDiscrete | MultiBinary)


def is_plain(spec: SpaceSpec) -> bool:
    """Whether values are numbers or texts, which need no copy and are their own encoding."""
    return isinstance(spec, Discrete | Text)


def is_composite(spec: SpaceSpec) -> TypeGuard[Composite]:
    """Whether values have parts."""
    return not is_plain(spec) and not is_array(spec)


def encoder(spec: SpaceSpec) -> Convert | None:
    """A function that encodes a value in the form of its space; None for plain ones."""
    if is_plain(spec):
        return None
    if is_array(spec):
        return np.ndarray.tobytes
    observe = observer(spec)
    return lambda value: observe(value)[1]


def duplicator(spec: SpaceSpec) -> Convert | None:
    """A function that copies a value in the form of its space, for code that may change it; None for plain ones."""
    if is_plain(spec):
        return None
    if is_array(spec):
        return np.ndarray.copy
    observe = observer(spec)
    return lambda value: observe(value)[0]


def sender(spec: SpaceSpec) -> Convert | None:
    """A function from a value in the form of its space to what is sent of it; None where that is the value itself."""
    return encoder(spec) if is_composite(spec) else None


def receiver(spec: SpaceSpec) -> Convert | None:
    """Back again. The function raises ValueError or TypeError for what is not of this space."""
    return decoder(spec) if is_composite(spec) else None


def blank(spec: SpaceSpec) -> Any:
    """What stands for a value in the form that is sent, where there is none."""
    if isinstance(spec, Discrete):
        return 0
    return np.zeros(spec.shape, storage(spec)[0]) if is_array(spec) else None


def _same(value: Any) -> Any:
    return value


def decoder(spec: SpaceSpec) -> Convert:  # noqa: PLR0911  # one for each kind
    """A function from an encoding to the value, which shares no memory with it. It raises ValueError or TypeError for another one."""
    match spec:
        case Discrete() | Text():
            return _same
        case Dict():
            keys, parts = spec.keys, list(map(decoder, spec.spaces))
            return lambda encoded: {
                key: part(one) for key, part, one in zip(keys, parts, encoded, strict=True)
            }
        case Tuple():
            parts = list(map(decoder, spec.spaces))
            return lambda encoded: tuple(part(one) for part, one in zip(parts, encoded, strict=True))
        case OneOf():
            parts = list(map(decoder, spec.spaces))
            return lambda encoded: (encoded[0], parts[encoded[0]](encoded[1]))
        case Sequence():
            return _batch(spec.feature) if spec.stack else _sequence(spec.feature)
        case Graph():
            return _graph(spec)
        case _:
            dtype, shape = storage(spec)
            return lambda encoded: np.frombuffer(encoded, dtype).reshape(shape).copy()


def _array_of_rows(feature: Numbers) -> Callable[[Any], NDArray[Any]]:
    dtype, shape = storage(feature)
    return lambda encoded: np.frombuffer(encoded[1], dtype).reshape(encoded[0], *shape).copy()


def _batch(feature: SpaceSpec) -> Convert:
    if isinstance(feature, NUMBERS):
        return _array_of_rows(feature)
    part = decoder(feature)
    return lambda encoded: stack(feature, [part(one) for one in encoded])


def _sequence(feature: SpaceSpec) -> Convert:
    if isinstance(feature, Discrete):
        rows = _array_of_rows(feature)
        return lambda encoded: tuple(rows(encoded).tolist())
    if isinstance(feature, NUMBERS):
        rows = _array_of_rows(feature)
        return lambda encoded: tuple(map(np.array, rows(encoded)))
    part = decoder(feature)
    return lambda encoded: tuple(map(part, encoded))


def _graph(spec: Graph) -> Convert:
    from gymnasium.spaces import GraphInstance  # noqa: PLC0415  # as in `specs`

    nodes, links = _batch(spec.nodes), _array_of_rows(LINKS)
    edges = None if spec.edges is None else _batch(spec.edges)

    def decode(encoded: Any) -> Any:
        if edges is None or encoded[1] is None:
            return GraphInstance(nodes(encoded[0]), None, None)
        return GraphInstance(nodes(encoded[0]), edges(encoded[1]), links(encoded[2]))

    return decode
