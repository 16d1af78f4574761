"""Episodes, tasks and steps of a run that has ended, row by row: as a table, JSON, CSV or Parquet.

Rules:
1. Memory holds one group of rows, however many there are.
2. A file gets its name when it is complete: an earlier file is kept until then.
3. CSV has no vectors: each number of a vector is a column, ``observation.0`` and so on; a vector of more than `MAX_COLUMNS`
   is one column of JSON.
"""

from __future__ import annotations

import errno
import sys
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from governor.episodes import trajectories
from governor.episodes.records import episode_file
from governor.errors import GovernorError, NotPermitted, TryAgain, UsageError
from governor.journal.disk_reserve import is_full
from governor.messages import EpisodeRecord, TaskRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from governor.messages import RunResult

Format: TypeAlias = Literal["table", "json", "csv", "parquet"]
Rows: TypeAlias = Literal["episodes", "tasks", "steps"]

GROUP: Final = 4096
SHOWN: Final = 40
"""Rows of a table for people; the other formats have all."""
MAX_COLUMNS: Final = 64
REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_json = msgspec.json.Encoder(enc_hook=str).encode


def _schema(record: type[msgspec.Struct], *before: str) -> pa.Schema:
    """The columns of a record; what is neither a number nor a text becomes a text."""
    kinds = {int: pa.int64(), float: pa.float64()}
    columns = [(field.name, kinds.get(field.type, pa.string())) for field in msgspec.structs.fields(record)]
    return pa.schema([*((name, pa.string()) for name in before), *columns])


EPISODES: Final = _schema(EpisodeRecord, "phase", "mode")
TASKS: Final = _schema(TaskRecord, "phase")


def export(found: RunResult, rows: Rows, *, form: Format, phase: str | None, output: Path | None) -> None:
    """Writes the rows to `output`, else to standard output. Raises UsageError, NotPermitted, TryAgain (a full disk)."""
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise UsageError("Parquet is nothing for a terminal: say --output FILE")
    if phase is not None and rows != "steps" and phase not in [one.name for one in found.phases]:
        raise UsageError(
            f"run {found.uid} has no phase {phase!r}: {_listed(one.name for one in found.phases)}"
        )
    try:
        schema, groups = _rows(found, rows, phase=phase)
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


# -- sources of rows ----------------------------------------------------------------------------------------


def _rows(found: RunResult, rows: Rows, *, phase: str | None) -> tuple[pa.Schema, Iterator[pa.Table]]:
    wanted = [one for one in found.phases if phase in (None, one.name)]
    if rows == "tasks":
        records = ({"phase": one.name, **_task(task)} for one in wanted for task in one.tasks)
        return TASKS, _grouped(records, TASKS)
    folder = Path(found.folder)
    if not folder.is_dir():
        raise UsageError(
            f"the folder of run {found.uid}, {folder}, is not on this machine: ask where its daemon runs"
        )
    if rows == "episodes":
        paths = [episode_file.path_of(folder, one.name) for one in wanted]
        return EPISODES, _grouped(_lines(path for path in paths if path.exists()), EPISODES)
    return _steps(folder, [one.name for one in found.phases], phase=phase)


def _task(task: Any) -> dict[str, Any]:
    texts = {name: _json(getattr(task, name)).decode() for name in ("value", "metrics")}
    return {**msgspec.structs.asdict(task), **texts}


def _lines(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for path in paths:
        with path.open("rb") as file:
            yield from (_episode(decode(line)) for line in file if line.endswith(b"\n"))


def _episode(line: dict[str, Any]) -> dict[str, Any]:
    """`values`, the returns of several players, become a text: not every episode has the same players."""
    return {**line, "values": _json(line["values"]).decode()} if "values" in line else line


def _grouped(records: Iterator[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.Table]:
    while group := list(islice(records, GROUP)):
        yield pa.Table.from_pylist(group, schema=schema)


def _steps(folder: Path, order: list[str], *, phase: str | None) -> tuple[pa.Schema, Iterator[pa.Table]]:
    recorded = sorted(
        trajectories.phases_of(folder),
        key=lambda name: (order.index(name) if name in order else len(order), name),
    )
    names = [name for name in recorded if phase in (None, name)]
    parts = [part for name in names if (part := trajectories.tables(folder, name)) is not None]
    if not parts:
        return pa.schema([]), iter(())
    if any(not schema.equals(parts[0][0]) for schema, _ in parts):
        raise UsageError(f"the phases {_listed(names)} have different columns: choose one with --phase")
    return parts[0][0], chain.from_iterable(groups for _, groups in parts)


# -- output -------------------------------------------------------------------------------------------------


@contextmanager
def _opened(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif output.exists() and not output.is_file():
        with output.open("wb") as file:
            yield file
    else:
        beside = output.with_name(f"{output.name}.part")
        try:
            with _created(beside, output) as file:
                yield file
            beside.replace(output)
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
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                for group in groups:
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
                file.write(before + _json(row))
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
        for field in kind:
            yield from _flat(f"{name}.{field.name}", pc.struct_field(column, field.name))
    elif pa.types.is_fixed_size_list(kind) and kind.list_size <= MAX_COLUMNS:
        for at in range(kind.list_size):
            yield f"{name}.{at}", pc.list_element(column, at)
    elif pa.types.is_fixed_size_list(kind):
        yield (
            name,
            pa.chunked_array([[None if row is None else _json(row).decode() for row in column.to_pylist()]]),
        )
    elif pa.types.is_dictionary(kind):
        yield name, column.cast(pa.string())
    else:
        yield name, _readable(column)


def _table(groups: Iterator[pa.Table]) -> str:
    from governor.cli import tables  # noqa: PLC0415  # rich: for people alone

    rows: list[dict[str, Any]] = []
    total = 0
    for group in groups:
        total += len(group)
        rows += _plain(group.slice(0, SHOWN - len(rows))) if len(rows) < SHOWN else []
    more = f"{total - len(rows)} more: --format csv, json or parquet has all" if total > len(rows) else ""
    return tables.rendered(tables.of_rows(rows, more=more))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _kind(error: OSError) -> type[GovernorError]:
    if error.errno in REFUSED:
        return NotPermitted
    return TryAgain if is_full(error) else UsageError


def _text_of(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
