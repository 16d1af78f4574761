"""Columns of numbers from `info` beside those of a step: ``info.<name>``, float64, null where a step does not have it.

Rules:
1. Of named keys a stream has these columns. Of ``all`` the names are known step by step: a stream has one column of lists then, and
   the metadata of each batch name the items, in their order.
2. A table has the columns of all streams of its phase, in the order of their names, at most `MOST`: so it does not depend on what
   was recorded first, or by which process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from governor.episodes.info import packing
from governor.episodes.records.stream import StreamReader, array

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)

PREFIX: Final = "info."
ANY_INFO: Final = "info.*"
MOST: Final = 256
_NAMES: Final = b"info"
_NUMBER: Final = pa.float64()


def fields(info: tuple[str, ...] | Literal["all"]) -> list[pa.Field]:
    """Of a stream."""
    if info == "all":
        return [pa.field(ANY_INFO, pa.list_(_NUMBER))]
    return [pa.field(PREFIX + name, _NUMBER) for name in info]


def arrays(
    rows: Sequence[Any], info: tuple[str, ...] | Literal["all"]
) -> tuple[list[pa.Array], dict[bytes, bytes]]:
    """The columns of these rows (`episodes.info`), and what the metadata of their batch say."""
    if not isinstance(info, str):
        return _columns(rows, len(info)), {}
    names = sorted({name for row in rows for name in row})
    items = _numbers([row.get(name) for row in rows for name in names])
    offsets = array(np.arange(len(rows) + 1, dtype=np.int32) * np.int32(len(names)))
    return [pa.ListArray.from_arrays(offsets, items)], {_NAMES: msgspec.json.encode(names)}


def _columns(rows: Sequence[bytes | list[float | None]], width: int) -> list[pa.Array]:
    try:
        values = np.frombuffer(b"".join(rows), np.float64).reshape(len(rows), width)  # type: ignore[arg-type]  # if all are bytes
    except TypeError:
        unpack = packing(width).unpack
        lists = [unpack(row) if isinstance(row, bytes) else row for row in rows]
        return [_numbers(column) for column in zip(*lists, strict=True)]
    return [array(values[:, place]) for place in range(width)]


def _numbers(values: Sequence[float | None]) -> pa.Array:
    valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return array(np.fromiter(values, np.float64, len(values)), valid=None if valid.all() else valid)


def names_in(schema: pa.Schema) -> list[str]:
    """The names of its columns of numbers from `info`."""
    return [
        name.removeprefix(PREFIX) for name in schema.names if name.startswith(PREFIX) and name != ANY_INFO
    ]


def names_of(metadata: Mapping[bytes, bytes]) -> list[str]:
    """The names of a batch of ``all``."""
    found: list[str] = msgspec.json.decode(metadata[_NAMES]) if _NAMES in metadata else []
    return found


def batch_of(reader: StreamReader, offset: int) -> pa.RecordBatch:
    """A batch with a column for each name, also of ``all``."""
    if reader.schema is None or ANY_INFO not in reader.schema.names:
        return reader.batch(offset)
    batch, metadata = reader.batch_with_metadata(offset)
    names, rows = names_of(metadata), batch.num_rows
    place = batch.schema.get_field_index(ANY_INFO)
    items, begins = batch.column(place).flatten(), np.arange(rows, dtype=np.int64) * len(names)
    data = [items.take(array(begins + item)) for item in range(len(names))]
    columns = [column for at, column in enumerate(batch.columns) if at != place]
    others = [field for at, field in enumerate(batch.schema) if at != place]
    schema = pa.schema([*others, *fields(tuple(names))], batch.schema.metadata)
    return pa.RecordBatch.from_arrays([*columns, *data], schema=schema)


def without_info(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if not field.name.startswith(PREFIX)], schema.metadata)


def with_info(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """The columns of rows with these."""
    chosen = tuple(sorted(names)[:MOST])
    return pa.schema([*without_info(schema), *fields(chosen)], schema.metadata)


def aligned(rows: Rows, schema: pa.Schema) -> Rows:
    """The rows with the columns of `schema`; a number that they do not have is null."""
    names, wanted = rows.schema.names, schema.names
    if names == wanted:
        return rows
    places = {name: place for place, name in enumerate(names)}
    columns = [
        pa.nulls(rows.num_rows, _NUMBER) if (place := places.get(name)) is None else rows.column(place)
        for name in wanted
    ]
    return type(rows).from_arrays(columns, schema=schema)
