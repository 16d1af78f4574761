"""Recorded steps, read back: ``pandas.read_parquet("<run folder>/episodes/<phase>.parquet")`` when a phase has ended.

Rules:
1. While a phase runs, and after a crash, its steps are in streams (`stream`). `finalize` writes one Parquet file of them
   (zstd), renames it when it is complete and synced, then removes the streams. Readers get the same before and after.
2. Rows are in order of episode and step. An episode that was played again counts once: its last attempt.
3. Memory holds the index of pieces, `PIECE.itemsize` bytes for each episode, and one row group of steps.
4. Columns: phase, worker (int32), episode, attempt, seed, step (int64); observation and action (int64 for Discrete, else a
   flat fixed-size list in C order, its shape in the field's metadata); reward (float64), terminated, truncated (bool),
   weight_version (int64); outcome. With several players each has a struct column of those from observation on.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from governor.episodes.records.stream import SUFFIX, StreamReader, array, folder_of, streams_of, texts
from governor.errors import UsageError
from governor.files import name_of, put_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

ROWS: Final = 65_536
BYTES: Final = 32 << 20
"""The approximate size of one row group."""
KIND: Final = b"kind"
"""In the metadata of a schema: ``text`` for sessions, absent for steps in numbers."""
PIECE: Final = np.dtype(
    [
        ("episode", "i8"), ("incarnation", "i4"), ("attempt", "i4"), ("seed", "i8"), ("step", "i8"), ("worker", "i4"),
        ("source", "i4"), ("offset", "i8"), ("row", "i4"), ("rows", "i4"), ("end", "i4"),
    ]
)  # fmt: skip
"""Rows of one attempt at an episode: their location, and in `end` how it ended, as a number of `_Index.ends`."""


def parquet_of(run_folder: Path, phase: str) -> Path:
    return folder_of(run_folder) / f"{name_of(phase)}.parquet"


def phases_of(run_folder: Path) -> list[str]:
    """The phases with recorded steps."""
    folder = folder_of(run_folder)
    names = {path.stem for path in folder.glob("*.parquet")}
    names |= {path.name.removesuffix(SUFFIX).rsplit(".", 2)[0] for path in folder.glob(f"*.*.*{SUFFIX}")}
    return sorted(unquote(name) for name in names)


def finalize(run_folder: Path, phase: str, *, episodes: Collection[int] | None = None) -> Path | None:
    """Makes the Parquet file of the phase, with only `episodes` if they are given; None if nothing was recorded.

    Raises OSError; the streams and an earlier Parquet file stay unchanged then.
    """
    path = parquet_of(run_folder, phase)
    streams = streams_of(run_folder, phase)
    if not streams:
        return path if path.exists() else None
    beside = path.with_name(f"{path.name}.part")
    with _Index(run_folder, phase) as index:
        if index.schema is not None:
            try:
                with pq.ParquetWriter(beside, index.schema, compression="zstd") as writer:
                    for table in index.tables(episodes):
                        writer.write_table(table)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise
            put_in_place(beside, path)
    # The oldest first: those that are left, should this end here, say what is newer.
    for _, _, stream in streams:
        stream.unlink()
    return path if path.exists() else None


def tables(run_folder: Path, phase: str) -> tuple[pa.Schema, Iterator[pa.Table]] | None:
    """The recorded steps of a phase, a row group at a time; None without any. Raises OSError."""
    index = _Index(run_folder, phase)
    if index.schema is None:
        index.close()
        return None
    return index.schema, _closing(index)


def _closing(index: _Index) -> Iterator[pa.Table]:
    with index:
        yield from index.tables()


def read(run_folder: Path, phase: str | None = None) -> pa.Table:
    """All steps of a phase, or of all phases, finalized or not, as one table in memory with a row for each step (see rule 4).
    Raises UsageError without steps or if the phases differ in their columns, and OSError.
    """
    phases = phases_of(run_folder) if phase is None else [phase]
    found = [one for name in phases if (one := tables(run_folder, name)) is not None]
    if not found:
        raise UsageError(f"no steps are on record in {folder_of(run_folder)}")
    schemas = [schema.remove_metadata() for schema, _ in found]
    if any(not schema.equals(schemas[0]) for schema in schemas):
        raise UsageError(
            f"the phases {', '.join(map(repr, phases))} have different columns: read one of them"
        )
    return pa.concat_tables(
        [pa.Table.from_batches([], found[0][0]), *(table for _, one in found for table in one)]
    )


class _Index(ExitStack):
    """Selects the valid rows, their order and their location. It holds the files open until it is closed."""

    def __init__(self, run_folder: Path, phase: str) -> None:
        super().__init__()
        self._phase = phase
        self._ends: dict[tuple[str, str], int] = {("", ""): 0}
        self._batches: list[Callable[[int], pa.RecordBatch]] = []
        self._at: tuple[int, int] | None = None
        self._rows_schema: pa.Schema | None = None
        self._found: list[NDArray[np.void]] = []
        with ExitStack() as unless_whole:
            unless_whole.callback(self.close)
            path = parquet_of(run_folder, phase)
            if path.exists():
                self._add_parquet(path)
            for incarnation, worker, stream in streams_of(run_folder, phase):
                self._add_stream(stream, worker=worker, incarnation=incarnation)
            unless_whole.pop_all()
        self.schema: pa.Schema | None = None if self._rows_schema is None else _schema(self._rows_schema)

    def tables(self, episodes: Collection[int] | None = None) -> Iterator[pa.Table]:
        """In order; each at most about a row group."""
        pieces = self._in_order(episodes)
        at = 0
        while at < len(pieces):
            slices: list[pa.RecordBatch] = []
            rows = size = 0
            first = at
            while at < len(pieces) and rows < ROWS and size < BYTES:
                piece = self._slice(pieces[at])
                slices.append(piece)
                rows, size, at = rows + piece.num_rows, size + piece.nbytes, at + 1
            yield self._table(slices, pieces[first:at])

    def _in_order(self, episodes: Collection[int] | None) -> NDArray[np.void]:
        found = np.concatenate([np.empty(0, PIECE), *self._found])
        self._found = []
        if episodes is not None:
            found = found[np.isin(found["episode"], np.fromiter(episodes, np.int64, len(episodes)))]
        if not len(found):
            return found
        group = ["seed", "episode"] if _is_text(self._rows_schema) else ["episode"]
        keys = ("row", "offset", "source", "step", "attempt", "incarnation", *group)
        found = found[np.lexsort([found[key] for key in keys])]
        starts = np.flatnonzero(np.r_[True, found[group][1:] != found[group][:-1]])
        counts = np.diff(np.r_[starts, len(found)])
        last = np.repeat(found[starts + counts - 1], counts)
        found["end"] = last["end"]
        is_last = (found["incarnation"] == last["incarnation"]) & (found["attempt"] == last["attempt"])
        counted: NDArray[np.void] = found[is_last & (found["rows"] > 0)]
        return counted

    def _slice(self, piece: np.void) -> pa.RecordBatch:
        location = int(piece["source"]), int(piece["offset"])
        if location != self._at:
            self._batch = self._batches[location[0]](location[1])
            self._at = location
        return self._batch.slice(int(piece["row"]), int(piece["rows"]))

    def _table(self, slices: Sequence[pa.RecordBatch], pieces: NDArray[np.void]) -> pa.Table:
        rows = pa.Table.from_batches(slices).combine_chunks()
        counts = pieces["rows"]

        def repeated(name: str) -> pa.Array:
            return array(np.repeat(pieces[name], counts))

        ends = list(self._ends)
        end = np.repeat(pieces["end"], counts)
        first = {"phase": _dictionary(np.zeros(len(end), np.int32), [self._phase])}
        last = {"outcome": _dictionary(end, [outcome for outcome, _ in ends])}
        if _is_text(rows.schema):
            first["started"] = repeated("episode").cast(_STARTED)
            last["reason"] = _dictionary(end, [reason for _, reason in ends])
        else:
            first |= {name: repeated(name) for name in _MARKS}
            before = np.repeat(np.cumsum(counts) - counts, counts)
            first["step"] = array(np.repeat(pieces["step"], counts) + np.arange(len(end)) - before)
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        return pa.table(first | columns | last, schema=self.schema)

    # -- sources --------------------------------------------------------------------------------------------

    def _add_stream(self, path: Path, *, worker: int, incarnation: int) -> None:
        reader = StreamReader(path)
        self.callback(reader.close)
        if reader.schema is None:
            return
        source = self._add(reader.schema, reader.batch)
        gathered: list[tuple[int, ...]] = []
        for offset, runs in reader.scan():
            row = 0
            for run in runs:
                end = self._end_of(run.outcome, run.reason)
                of_run = (run.episode, incarnation, run.attempt, run.seed, run.step, worker)
                gathered.append((*of_run, source, offset, row, run.rows, end))
                row += run.rows
            if len(gathered) >= ROWS:
                self._gather(gathered)
        self._gather(gathered)

    def _add_parquet(self, path: Path) -> None:
        """Adds it as the oldest source: a stream that still exists is as new or newer."""
        file = pq.ParquetFile(path)
        self.callback(file.close)
        marks = ["started"] if _is_text(file.schema_arrow) else [*_MARKS]
        fields = [field for field in file.schema_arrow if field.name not in {"phase", *marks, *_LAST}]
        schema = pa.schema(fields, file.schema_arrow.metadata)
        source = self._add(schema, partial(_row_group, file, schema))
        last = [name for name in _LAST if name in file.schema_arrow.names]
        for group in range(file.num_row_groups):
            columns = [*marks, *last, *(["session"] if "started" in marks else [])]
            table = file.read_row_group(group, columns=columns).combine_chunks()
            self._gather(list(self._pieces_of(table, source=source, group=group)))

    def _pieces_of(self, table: pa.Table, *, source: int, group: int) -> Iterator[tuple[int, ...]]:
        group_of = ["started", "session"] if "session" in table.column_names else ["episode"]
        keys = [np.asarray(table[name]) for name in group_of]
        begins = np.flatnonzero(np.r_[True, np.any([key[1:] != key[:-1] for key in keys], axis=0)])
        for begin, end in zip(begins, [*begins[1:], len(table)], strict=True):
            row = table.slice(int(begin), 1).to_pylist()[0]
            ended = self._end_of(*(row[name] or "" for name in _LAST if name in row))
            if "session" in row:
                started = table["started"].chunk(0)[int(begin)].value
                mark = (started, 0, 1, session_number(row["session"]), 0, 0)
            else:
                mark = (row["episode"], 0, row["attempt"], row["seed"], row["step"], row["worker"])
            yield *mark, source, group, int(begin), int(end - begin), ended

    def _add(self, schema: pa.Schema, batch: Callable[[int], pa.RecordBatch]) -> int:
        if self._rows_schema is None:
            self._rows_schema = schema
        elif not schema.equals(self._rows_schema):
            raise UsageError(
                f"phase {self._phase!r} was recorded with other spaces before: its steps are no one table"
            )
        self._batches.append(batch)
        return len(self._batches) - 1

    def _end_of(self, outcome: str, reason: str = "") -> int:
        return self._ends.setdefault((outcome, reason), len(self._ends))

    def _gather(self, pieces: list[tuple[int, ...]]) -> None:
        self._found.append(np.array(pieces, PIECE))
        pieces.clear()


_MARKS: Final = {
    "worker": pa.int32(),
    "episode": pa.int64(),
    "attempt": pa.int32(),
    "seed": pa.int64(),
    "step": pa.int64(),
}
"""Columns of the rows of an attempt, and their types."""
_LAST: Final = ("outcome", "reason")
_WORDS: Final = pa.dictionary(pa.int32(), pa.string())
_STARTED: Final = pa.timestamp("us", "UTC")
"""Microseconds, because nanoseconds become Python values only with pandas, which is no dependency."""


def _schema(rows: pa.Schema) -> pa.Schema:
    """The schema of the result: the columns of the rows between those of their episode."""
    first = [pa.field("phase", _WORDS)]
    last = [pa.field("outcome", _WORDS)]
    if _is_text(rows):
        first.append(pa.field("started", _STARTED))
        last.append(pa.field("reason", _WORDS))
    else:
        first += [pa.field(name, kind) for name, kind in _MARKS.items()]
    return pa.schema([*first, *rows, *last], rows.metadata)


def session_number(session: str) -> int:
    """Distinguishes two sessions that began in the same microsecond: 60 bits of the hexadecimal id."""
    return int(session[:15], 16)


def _is_text(schema: pa.Schema) -> bool:
    return (schema.metadata or {}).get(KIND) == b"text"


def _dictionary(numbers: NDArray[Any], words: Sequence[str]) -> pa.Array:
    """A dictionary array of `words` by their numbers; an empty word is null."""
    known = {word: number for number, word in enumerate(dict.fromkeys(filter(None, words)))}
    indices = np.array([known.get(word, -1) for word in words], np.int32)[numbers]
    return pa.DictionaryArray.from_arrays(array(indices, valid=indices >= 0), texts([*known]))


def _row_group(file: pq.ParquetFile, schema: pa.Schema, group: int) -> pa.RecordBatch:
    table = file.read_row_group(group, columns=schema.names).combine_chunks()
    return pa.RecordBatch.from_arrays([column.chunk(0) for column in table.columns], schema=schema)
