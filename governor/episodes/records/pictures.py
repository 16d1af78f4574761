"""Pictures among the columns of steps: arrays of bytes, as screens and cameras give them.

Rules:
1. In streams, and in all that is read here, a picture is a list of numbers as any other array. In a Parquet file it is one value, its
   bytes in C order: a list costs Arrow 15 ns for each number, which is 0.4 ms for 84 x 84 x 4, and is compressed no better.
2. A batch of a stream whose rows are `WIDE` is compressed: most pictures to a hundredth. Noise costs 0.6 ns a byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

LEAST: Final = 1024
"""Numbers of an array that is a picture; those with fewer are a list in a Parquet file, too."""
WIDE: Final = 4096
"""Bytes of a row."""
_ITEM: Final = pa.field("item", pa.uint8(), nullable=False)


def compression(schema: pa.Schema) -> str | None:
    """Of a stream with these columns. Floats that are noise would cost with zstd three times what they cost with lz4."""
    if not stored_schema(schema).equals(schema):
        return "zstd"
    return "lz4" if row_bits(schema) >= 8 * WIDE else None


def row_bits(schema: pa.Schema) -> int:
    """Of the values with a fixed size."""
    return sum(_bits(field.type) for field in schema)


def _bits(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return sum(_bits(field.type) for field in kind)
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _bits(kind.value_type)
    return int(kind.bit_width) if pa.types.is_primitive(kind) else 0


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """As the columns are in a Parquet file."""
    return _mapped(schema, _stored_kind)


def stored(table: pa.Table) -> pa.Table:
    """Likewise; no picture is copied."""
    return _cast_table(table, stored_schema(table.schema))


def given_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a Parquet file, as they were given."""
    return _mapped(schema, _given_kind)


def given(table: pa.Table) -> pa.Table:
    """Likewise."""
    return _cast_table(table, given_schema(table.schema))


def described(table: pa.Table) -> pa.Table:
    """With the size of each picture in its place, as a text."""
    return _cast_table(stored(table), _mapped(table.schema, _described_kind))


def _mapped(schema: pa.Schema, kind_of: Callable[[pa.DataType], pa.DataType]) -> pa.Schema:
    return pa.schema([field.with_type(kind_of(field.type)) for field in schema], schema.metadata)


def _stored_kind(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_stored_kind(field.type)) for field in kind])
    if not pa.types.is_fixed_size_list(kind) or kind.list_size < LEAST:
        return kind
    is_picture = kind.value_type == _ITEM.type and not kind.value_field.nullable
    return pa.binary(kind.list_size) if is_picture else kind


def _given_kind(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_given_kind(field.type)) for field in kind])
    return pa.list_(_ITEM, kind.byte_width) if pa.types.is_fixed_size_binary(kind) else kind


def _described_kind(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_described_kind(field.type)) for field in kind])
    is_picture = pa.types.is_fixed_size_binary(_stored_kind(kind))
    return pa.string() if is_picture else kind


def _cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if schema.equals(table.schema):
        return table
    columns = [
        pa.chunked_array([_cast(chunk, field.type) for chunk in column.chunks], field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """By their buffers: what Arrow has for it imports pyarrow.compute, which is 40 MB."""
    if array.type.equals(kind):
        return array
    rows, valid = len(array), _valid(array)
    if pa.types.is_struct(kind):
        children = [_cast(array.field(place), kind.field(place).type) for place in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, rows, [valid], children=children)
    if pa.types.is_string(kind):
        text = f"{array.type.byte_width:,} bytes"
        return pa.array([text if one else None for one in _flags(array)], kind)
    if pa.types.is_fixed_size_binary(kind):
        size, values = kind.byte_width, array.values
        data = values.buffers()[1].slice(values.offset + array.offset * size, rows * size)
        return pa.Array.from_buffers(kind, rows, [valid, data])
    size = kind.list_size
    data = array.buffers()[1].slice(array.offset * size, rows * size)
    numbers = pa.Array.from_buffers(_ITEM.type, rows * size, [None, data])
    return pa.Array.from_buffers(kind, rows, [valid], children=[numbers])


def _valid(array: pa.Array) -> pa.Buffer | None:
    """Which of its values are not null, as a bitmap that begins with the first of them; None if all are."""
    return pa.py_buffer(np.packbits(_flags(array), bitorder="little")) if array.null_count else None


def _flags(array: pa.Array) -> NDArray[np.uint8]:
    """1 for each that is not null, else 0."""
    if not array.null_count:
        return np.ones(len(array), np.uint8)
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)]
