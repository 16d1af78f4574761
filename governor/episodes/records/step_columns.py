"""The columns of the tables of steps: those of the recorded rows between those of their episode.

Columns: phase, worker, attempt (int32), episode, seed, step (int64); observation and action (`space_columns`); reward (float64), terminated, truncated (bool), weight_version
(int64); outcome. With several players each has a struct column of those from observation on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from governor.episodes.records.stream import array, texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

KIND: Final = b"kind"
"""In the metadata of a schema: ``text`` for sessions, absent for steps in numbers."""
MARKS: Final = {
    "worker": pa.int32(),
    "episode": pa.int64(),
    "attempt": pa.int32(),
    "seed": pa.int64(),
    "step": pa.int64(),
}
"""Columns of the rows of an attempt, and their types."""
LAST: Final = ("outcome", "reason")
WORDS: Final = pa.dictionary(pa.int32(), pa.string())
STARTED: Final = pa.timestamp("us", "UTC")
"""Microseconds, because nanoseconds become Python values only with pandas, which is no dependency."""


def table_schema(rows: pa.Schema) -> pa.Schema:
    """The schema of the result: the columns of the rows between those of their episode."""
    first = [pa.field("phase", WORDS)]
    last = [pa.field("outcome", WORDS)]
    if is_text(rows):
        first.append(pa.field("started", STARTED))
        last.append(pa.field("reason", WORDS))
    else:
        first += [pa.field(name, kind) for name, kind in MARKS.items()]
    return pa.schema([*first, *rows, *last], rows.metadata)


def rows_schema(table: pa.Schema) -> pa.Schema:
    """The columns of the rows alone."""
    others = {"phase", *(["started"] if is_text(table) else MARKS), *LAST}
    return pa.schema([field for field in table if field.name not in others], table.metadata)


def session_number(session: str) -> int:
    """Distinguishes two sessions that began in the same microsecond: 60 bits of the hexadecimal id."""
    return int(session[:15], 16)


def is_text(schema: pa.Schema) -> bool:
    return (schema.metadata or {}).get(KIND) == b"text"


def varies(schema: pa.Schema) -> bool:
    """Whether rows have values without a fixed size."""
    return any(_varies(field.type) for field in schema)


def _varies(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_varies(field.type) for field in kind)
    return bool(pa.types.is_list(kind) or pa.types.is_string(kind))


def dictionary(numbers: NDArray[Any], words: Sequence[str]) -> pa.Array:
    """A dictionary array of `words` by their numbers; an empty word is null."""
    known = {word: number for number, word in enumerate(dict.fromkeys(filter(None, words)))}
    indices = np.array([known.get(word, -1) for word in words], np.int32)[numbers]
    return pa.DictionaryArray.from_arrays(array(indices, valid=indices >= 0), texts([*known]))
