"""Episodes, tasks and steps of a run that has ended, row by row: as a table, JSON, CSV or Parquet.

Rules:
1. Memory holds one group of rows, however many there are.
2. A file gets its name when it is complete: an earlier file is kept until then.
3. CSV has no vectors: each number of a vector is a column, ``observation.0`` and so on; a vector of more than `MAX_COLUMNS`, or
   without a fixed size, is one column of JSON.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from governor.episodes.records import pictures
from governor.errors import GovernorError, NotPermitted, TryAgain, UsageError
from governor.files import temporary
from governor.journal.disk_reserve import is_full
from governor.rows import GROUP, encode_json, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.messages import RunResult
    from governor.rows import Rows

Format: TypeAlias = Literal["table", "json", "csv", "parquet"]

SHOWN: Final = 40
"""Rows of a table for people; the other formats have all."""
MAX_COLUMNS: Final = 64
REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def export(found: RunResult, rows: Rows, *, form: Format, phase: str | None, output: Path | None) -> None:
    """Writes the rows to `output`, else to standard output. Raises UsageError, NotPermitted, TryAgain (a full disk)."""
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise UsageError("Parquet is nothing for a terminal: say --output FILE")
    try:
        schema, groups = rows_of(found.uid, Path(found.folder), found.phases, rows, phase=phase)
        first = next(groups, None)
        if first is None:
            raise UsageError(
                f"run {found.uid} has no {rows} on record{f' of phase {phase!r}' if phase else ''}"
            )
        with _opened(output) as file:
            _write(schema, chain([first], groups), file, form=form)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _kind(error)(_text_of(error)) from error


def export_table(table: pa.Table, *, form: Format, output: Path | None) -> None:
    """As `export`, of one table."""
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise UsageError("Parquet is nothing for a terminal: say --output FILE")
    try:
        with _opened(output) as file:
            _write(table.schema, iter([table]), file, form=form)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _kind(error)(_text_of(error)) from error


@contextmanager
def _opened(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif output.exists() and not output.is_file():
        with output.open("wb") as file:
            yield file
    else:
        target = Path(os.path.realpath(output))  # what a link points to, not the link
        beside = temporary(target)
        try:
            with _created(beside, output) as file:
                yield file
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)


def _created(beside: Path, output: Path) -> BinaryIO:
    """Raises OSError with the name that the user gave."""
    try:
        return beside.open("wb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(output)) from error


def _write(schema: pa.Schema, groups: Iterator[pa.Table], file: BinaryIO, *, form: Format) -> None:
    match form:
        case "parquet":
            with pq.ParquetWriter(file, pictures.stored_schema(schema), compression="zstd") as writer:
                for group in map(pictures.stored, groups):
                    writer.write_table(group)
        case "csv":
            flat = chain.from_iterable(map(_flat_parts, groups))
            first = next(flat)
            with pyarrow.csv.CSVWriter(file, first.schema) as writer:
                for group in chain([first], flat):
                    writer.write_table(group)
        case "json":
            before = b"[\n"
            for row in chain.from_iterable(map(_plain, groups)):
                file.write(before + encode_json(row))
                before = b",\n"
            file.write(b"\n]\n")
        case "table":
            file.write(_table(groups).encode())


def _plain(group: pa.Table) -> Iterator[dict[str, Any]]:
    for at in range(0, len(group), GROUP):
        columns = [_readable(column) for column in group.slice(at, GROUP).columns]
        yield from pa.table(columns, names=group.column_names).to_pylist()


def _readable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Timestamps as texts: Python's own times have no nanoseconds."""
    return column.cast(pa.string()) if pa.types.is_timestamp(column.type) else column


def _flat_parts(group: pa.Table) -> Iterator[pa.Table]:
    for at in range(0, len(group), GROUP):
        part = group.slice(at, GROUP)
        columns = chain.from_iterable(_flat(name, part[name]) for name in part.column_names)
        yield pa.table(dict(columns))


def _flat(name: str, column: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray]]:
    kind = column.type
    if pa.types.is_struct(kind):
        for at, field in enumerate(kind):
            yield from _flat(f"{name}.{field.name}", pc.struct_field(column, [at]))
    elif pa.types.is_fixed_size_list(kind) and kind.list_size <= MAX_COLUMNS:
        for at in range(kind.list_size):
            yield f"{name}.{at}", pc.list_element(column, at)
    elif pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
        rows = [None if row is None else encode_json(row).decode() for row in column.to_pylist()]
        yield name, pa.chunked_array([rows], pa.string())
    elif pa.types.is_dictionary(kind):
        yield name, column.cast(pa.string())
    else:
        yield name, _readable(column)


def _table(groups: Iterator[pa.Table]) -> str:
    from governor.cli.rendering import tables  # noqa: PLC0415  # rich: for people alone

    rows: list[dict[str, Any]] = []
    total = 0
    for group in groups:
        total += len(group)
        rows += _plain(group.slice(0, SHOWN - len(rows))) if len(rows) < SHOWN else []
    more = f"{total - len(rows)} more: --format csv, json or parquet has all" if total > len(rows) else ""
    return tables.rendered(tables.of_rows(rows, more=more))


def _kind(error: OSError) -> type[GovernorError]:
    if error.errno in REFUSED:
        return NotPermitted
    return TryAgain if is_full(error) else UsageError


def _text_of(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
