"""Observers of the spaces that are made of others. Each value inside goes to the observer of its own space (`part`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from governor.episodes.spaces.batches import stack, unstack
from governor.episodes.spaces.conformers import inside, rows_conformer, short
from governor.episodes.spaces.specs import (
    Box,
    Composite,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Tuple,
    step,
)

if TYPE_CHECKING:
    from governor.episodes.spaces.observing import Observer
    from governor.episodes.spaces.specs import Graph, SpaceSpec

Part: TypeAlias = Callable[["SpaceSpec"], "Observer"]
NUMBERS: Final = (Discrete, Box, MultiDiscrete, MultiBinary)


def observer(spec: Composite, *, part: Part) -> Observer:
    match spec:
        case Dict():
            return _dict(spec, part)
        case Tuple():
            return _tuple(spec, part)
        case OneOf():
            return _one_of(spec, part)
        case Sequence():
            return _batch(spec.feature, part) if spec.stack else _sequence(spec, part)
        case _:
            return _graph(spec, part)


def _dict(spec: Dict, part: Part) -> Observer:
    parts = [(key, part(space)) for key, space in zip(spec.keys, spec.spaces, strict=True)]
    keys = frozenset(spec.keys)

    def observe(value: Any) -> tuple[dict[str | int, Any], tuple[Any, ...]]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{short(value)} is a {type(value).__name__}, not a dict")  # noqa: TRY004  # as any other fault
        if value.keys() != keys:
            raise ValueError(_wrong_keys(spec, value))
        values, encodings = {}, []
        for key, observed in parts:
            try:
                values[key], encoded = observed(value[key])
            except ValueError as error:
                raise inside(step(key), error) from None
            encodings.append(encoded)
        return values, tuple(encodings)

    return observe


def _wrong_keys(spec: Dict, value: Mapping[Any, Any]) -> str:
    missing = [key for key in spec.keys if key not in value]
    extra = [key for key in value if key not in spec.keys]
    parts = [f"lacks the key {missing[0]!r}"] if missing else []
    parts += [f"has the key {extra[0]!r}, which the space does not have"] if extra else []
    return f"it {' and '.join(parts)}"


def _items(value: Any, kind: str) -> Any:
    """The items of a tuple: gymnasium takes lists and arrays as such."""
    if not isinstance(value, tuple | list | np.ndarray) or getattr(value, "shape", None) == ():
        raise ValueError(f"{short(value)} is a {type(value).__name__}, not {kind}")
    return value


def _tuple(spec: Tuple, part: Part) -> Observer:
    parts = [(place, part(space)) for place, space in enumerate(spec.spaces)]

    def observe(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        if len(_items(value, "a tuple")) != len(parts):
            raise ValueError(f"{len(value)} items where the space has {len(parts)}")
        values, encodings = [], []
        for place, observed in parts:
            try:
                one, encoded = observed(value[place])
            except ValueError as error:
                raise inside(step(place), error) from None
            values.append(one)
            encodings.append(encoded)
        return tuple(values), tuple(encodings)

    return observe


def _one_of(spec: OneOf, part: Part) -> Observer:
    parts = list(map(part, spec.spaces))

    def observe(value: Any) -> tuple[tuple[int, Any], tuple[int, Any]]:
        if len(_items(value, "(index, value)")) != 2 or not isinstance(value[0], int | np.integer):
            raise ValueError(f"{short(value)} is not (index, value)")
        place = int(value[0])
        if not 0 <= place < len(parts):
            raise ValueError(f"the index {place} where the space has {len(parts)} spaces")
        try:
            one, encoded = parts[place](value[1])
        except ValueError as error:
            raise inside(f"[{place}]", error) from None
        return (place, one), (place, encoded)

    return observe


def _sequence(spec: Sequence, part: Part) -> Observer:
    observed, join = part(spec.feature), _joined(spec.feature)

    def observe(value: Any) -> tuple[tuple[Any, ...], Any]:
        values, encodings = _each(observed, _items(value, "a tuple"))
        return tuple(values), join(encodings)

    return observe


def _each(observed: Observer, items: Any) -> tuple[list[Any], list[Any]]:
    values, encodings = [], []
    for place, item in enumerate(items):
        try:
            one, encoded = observed(item)
        except ValueError as error:
            raise inside(step(place), error) from None
        values.append(one)
        encodings.append(encoded)
    return values, encodings


def _joined(feature: SpaceSpec) -> Callable[[list[Any]], Any]:
    """From the encodings of values to that of their sequence."""
    match feature:
        case Discrete():
            return lambda numbers: (len(numbers), np.array(numbers, np.int64).tobytes())
        case Box() | MultiDiscrete() | MultiBinary():
            return lambda arrays: (len(arrays), b"".join(arrays))
        case _:
            return tuple


def _batch(feature: SpaceSpec, part: Part) -> Observer:
    """Of any number of values of `feature` in the form of `batches`."""
    if isinstance(feature, NUMBERS):
        conform = rows_conformer(feature)

        def observe_rows(value: Any) -> tuple[Any, Any]:
            rows = conform(value)
            return rows.copy(), (len(rows), rows.tobytes())

        return observe_rows
    observed = part(feature)

    def observe(value: Any) -> tuple[Any, Any]:
        values, encodings = _each(observed, unstack(feature, value))
        return stack(feature, values), tuple(encodings)

    return observe


def _graph(spec: Graph, part: Part) -> Observer:
    from gymnasium.spaces import GraphInstance  # noqa: PLC0415  # as in `specs`

    nodes_of = _batch(spec.nodes, part)
    edges_of = None if spec.edges is None else _batch(spec.edges, part)

    def observe(value: Any) -> tuple[Any, Any]:
        try:
            nodes, edges, links = value.nodes, value.edges, value.edge_links
        except AttributeError:
            raise ValueError(f"{short(value)} is a {type(value).__name__}, not a GraphInstance") from None
        kept_nodes, encoded_nodes = _at(".nodes", nodes_of, nodes)
        if edges is None and links is None:
            return GraphInstance(kept_nodes, None, None), (encoded_nodes, None, None)
        if edges is None or links is None:
            raise ValueError(
                f"it has {'edge_links' if edges is None else 'edges'} alone: edges and edge_links go together"
            )
        if edges_of is None:
            raise ValueError("it has edges, and the space does not")
        kept_edges, encoded_edges = _at(".edges", edges_of, edges)
        kept_links, encoded_links = _at(".edge_links", _links, links)
        if encoded_links[0] != _count(encoded_edges):
            raise ValueError(f"{encoded_links[0]} edge_links for {_count(encoded_edges)} edges")
        if kept_links.size and not 0 <= kept_links.min() <= kept_links.max() < _count(encoded_nodes):
            raise ValueError(f"edge_links beyond its {_count(encoded_nodes)} nodes")
        return GraphInstance(kept_nodes, kept_edges, kept_links), (
            encoded_nodes,
            encoded_edges,
            encoded_links,
        )

    return observe


def _at(path: str, observed: Observer, value: Any) -> tuple[Any, Any]:
    try:
        return observed(value)
    except ValueError as error:
        raise inside(path, error) from None


LINKS: Final = Box(shape=(2,), dtype="<i4", low=b"", high=b"")
"""The numbers of two nodes, of an edge."""
_conform_links = rows_conformer(LINKS)


def _links(value: Any) -> tuple[Any, Any]:
    links = _conform_links(value)
    return links.copy(), (len(links), links.tobytes())


def _count(encoded: Any) -> int:
    """How many values a batch has, by its encoding."""
    return encoded[0] if len(encoded) == 2 and isinstance(encoded[1], bytes) else len(encoded)
