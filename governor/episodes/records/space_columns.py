"""The columns of observations and actions: from encodings (`spaces.encodings`) to Arrow, once for each batch of steps.

Columns: int64 for Discrete; string for Text; a flat fixed-size list for an array, in C order, with its shape in the field's metadata,
as JSON; a struct for Dict and Tuple (fields ``0``, ``1``, ...); a list for Sequence; a struct of nodes, edges, edge_links for Graph; a
struct of choice and a field for each space, null for those that were not chosen, for OneOf.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from governor.episodes.records.stream import array, bits, texts
from governor.episodes.spaces import Dict, Discrete, Graph, OneOf, Sequence, Text, Tuple, storage
from governor.episodes.spaces.composites import LINKS

if TYPE_CHECKING:
    from collections.abc import Sequence as Values

    from numpy.typing import NDArray

    from governor.episodes.spaces import SpaceSpec
    from governor.episodes.spaces.specs import Numbers

    Flags: TypeAlias = NDArray[np.bool_]


class SpaceColumn(ABC):
    """The column of one space. `blank` stands for a value where there is none; `row_bytes` is the size of a value without its texts
    and lists.
    """

    kind: pa.DataType
    metadata: dict[str, bytes] | None = None
    blank: Any
    row_bytes = 0

    @abstractmethod
    def arrow(self, encodings: Values[Any], valid: Flags | None = None) -> pa.Array:
        """The values that have these encodings; null where `valid`, if it is given, is false: there the encoding is `blank`."""

    def of_array(self, values: NDArray[Any]) -> pa.Array:
        """Values that are one array, (rows, *shape). Raises TypeError where they can't be."""
        raise TypeError(f"no array of {values.dtype} holds values of {self.kind}")


def column(spec: SpaceSpec) -> SpaceColumn:  # noqa: PLR0911  # one for each kind
    match spec:
        case Discrete():
            return _Integers()
        case Text():
            return _Texts()
        case Dict():
            return _Parts([*map(str, spec.keys)], spec.spaces)
        case Tuple():
            return _Parts([*map(str, range(len(spec.spaces)))], spec.spaces)
        case Sequence():
            return _Lists(spec.feature)
        case Graph():
            return _Graphs(spec)
        case OneOf():
            return _Choices(spec)
        case _:
            return _Arrays(spec)


def field(name: str, of: SpaceColumn) -> pa.Field:
    """Nullable, though it never is null (but for numbers): in a struct that is, Arrow could not read it back from Parquet."""
    return pa.field(name, of.kind, nullable=not isinstance(of, _Integers), metadata=of.metadata)


class _Integers(SpaceColumn):
    kind = pa.int64()
    blank = 0
    row_bytes = 8

    def arrow(self, encodings: Values[Any], valid: Flags | None = None) -> pa.Array:
        return array(np.fromiter(encodings, np.int64, len(encodings)), valid=valid)

    def of_array(self, values: NDArray[Any]) -> pa.Array:
        return array(values)


class _Texts(SpaceColumn):
    kind = pa.string()
    blank = ""

    def arrow(self, encodings: Values[Any], valid: Flags | None = None) -> pa.Array:
        return texts(encodings, valid=valid)


class _Arrays(SpaceColumn):
    def __init__(self, spec: Numbers) -> None:
        dtype, shape = storage(spec)
        self.row_bytes = dtype.itemsize * prod(shape)
        self.blank = bytes(self.row_bytes)
        self.metadata = {"shape": msgspec.json.encode(shape)}
        # A list of the fixed size 0 ends the process when Arrow writes it to Parquet.
        item = pa.field("item", pa.from_numpy_dtype(dtype), nullable=False)
        self.kind = pa.list_(item, prod(shape) or -1)
        self._dtype = dtype

    def arrow(self, encodings: Values[Any], valid: Flags | None = None) -> pa.Array:
        return self.rows(b"".join(encodings), len(encodings), valid)

    def of_array(self, values: NDArray[Any]) -> pa.Array:
        return self.rows(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data, len(values))

    def rows(self, data: bytes | memoryview, rows: int, valid: Flags | None = None) -> pa.Array:
        """Of so many arrays, one after the other."""
        if not pa.types.is_fixed_size_list(self.kind):  # of the size 0
            there = [True] * rows if valid is None else valid
            return pa.array([() if one else None for one in there], self.kind)
        flat = np.frombuffer(data, self._dtype)
        if flat.size != rows * self.kind.list_size:
            raise ValueError(f"values that are no arrays of {self._dtype} in the shape of their space")
        known = None if valid is None else bits(valid)
        return pa.Array.from_buffers(self.kind, rows, [known], children=[array(flat)])


class _Parts(SpaceColumn):
    def __init__(self, names: list[str], spaces: Values[SpaceSpec]) -> None:
        self._columns = [column(space) for space in spaces]
        self._fields = [field(name, one) for name, one in zip(names, self._columns, strict=True)]
        # Parquet has no struct without fields.
        self.kind = pa.struct(self._fields) if names else pa.null()
        self.blank = tuple(one.blank for one in self._columns)
        self.row_bytes = sum(one.row_bytes for one in self._columns)

    def arrow(self, encodings: Values[Any], valid: Flags | None = None) -> pa.Array:
        if not self._columns:
            return pa.nulls(len(encodings))
        parts = zip(*encodings, strict=True) if encodings else [()] * len(self._columns)
        children = [one.arrow(part) for one, part in zip(self._columns, parts, strict=True)]
        return _struct(children, self._fields, valid)


class _Lists(SpaceColumn):
    """Any number of values of a space; None where there is no list."""

    def __init__(self, feature: SpaceSpec) -> None:
        self._item = column(feature)
        self._joined = isinstance(self._item, _Arrays | _Integers)
        self.kind = pa.list_(field("item", self._item))
        self.blank = (0, b"") if self._joined else ()

    def arrow(self, encodings: Values[Any], valid: Flags | None = None) -> pa.Array:
        present = [self.blank if one is None else one for one in encodings]
        counts = [one[0] if self._joined else len(one) for one in present]
        offsets = array(np.cumsum([0, *counts]).astype(np.int32))
        absent = np.fromiter((one is None for one in encodings), np.bool_, len(encodings))
        if valid is not None:
            absent |= ~valid
        items = self._items(present, sum(counts))
        mask = array(absent) if absent.any() else None
        return pa.ListArray.from_arrays(offsets, items, type=self.kind, mask=mask)

    def _items(self, encodings: list[Any], rows: int) -> pa.Array:
        if isinstance(self._item, _Integers):
            return array(np.frombuffer(b"".join([data for _, data in encodings]), np.int64))
        if isinstance(self._item, _Arrays):
            return self._item.rows(b"".join([data for _, data in encodings]), rows)
        return self._item.arrow([one for encoding in encodings for one in encoding])


class _Graphs(_Parts):
    def __init__(self, spec: Graph) -> None:
        edges = LINKS if spec.edges is None else spec.edges
        lists = [Sequence(feature=feature, stack=True) for feature in (spec.nodes, edges, LINKS)]
        super().__init__(["nodes", "edges", "edge_links"], lists)


class _Choices(SpaceColumn):
    def __init__(self, spec: OneOf) -> None:
        self._columns = [column(space) for space in spec.spaces]
        self._fields = [
            pa.field("choice", pa.int64(), nullable=False),
            *(
                pa.field(str(place), one.kind, metadata=one.metadata)
                for place, one in enumerate(self._columns)
            ),
        ]
        self.kind = pa.struct(self._fields)
        self.blank = (0, self._columns[0].blank)
        self.row_bytes = 8 + sum(one.row_bytes for one in self._columns)

    def arrow(self, encodings: Values[Any], valid: Flags | None = None) -> pa.Array:
        choices = np.fromiter((choice for choice, _ in encodings), np.int64, len(encodings))
        children = [array(choices)]
        for place, one in enumerate(self._columns):
            values = [encoded if choice == place else one.blank for choice, encoded in encodings]
            children.append(one.arrow(values, choices == place))
        return _struct(children, self._fields, valid)


def _struct(children: list[pa.Array], fields: list[pa.Field], valid: Flags | None) -> pa.Array:
    return pa.StructArray.from_arrays(children, fields=fields, mask=None if valid is None else array(~valid))
