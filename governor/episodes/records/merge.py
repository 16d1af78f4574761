"""The steps of a phase in order of episode and step, merged from its streams and an earlier Parquet file.

Rules:
1. An episode that was played again counts once: its last attempt.
2. A row group has `ROWS` rows, fewer where these are more than `BYTES`; the last one has the rest. So the same steps are cut
   into the same groups, however they were written.
3. Memory holds the pieces of `pieces.MOST` episodes, a row group of steps, and `CACHE` bytes of batches.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from governor.episodes.records import pictures
from governor.episodes.records.episode_file import folder_of, parquet_of, streams_of
from governor.episodes.records.info_columns import (
    aligned,
    batch_of,
    names_in,
    names_of,
    with_info,
    without_info,
)
from governor.episodes.records.pieces import PIECE, Cut, Pieces, ranges
from governor.episodes.records.step_columns import (
    LAST,
    MARKS,
    STARTED,
    dictionary,
    is_text,
    rows_schema,
    session_number,
    table_schema,
    varies,
)
from governor.episodes.records.stream import StreamReader, array
from governor.errors import StepsDamaged, UsageError
from governor.failures import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from governor.episodes.records.stream import RunValues
    from governor.index_ranges import IndexRanges

ROWS: Final = 65_536
BYTES: Final = 32 << 20
"""The approximate size of one row group."""
CACHE: Final = 16 << 20
GATHERED: Final = 4096
"""Pieces that become an array at a time."""
TEXT_ROWS: Final = 64
"""Rows of sessions that are read at a time: their size is not known before."""
VARYING_ROWS: Final = 512
"""Likewise, of steps with texts or lists."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Of a Parquet file of steps. Raises StepsDamaged for what Arrow can't read."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:  # of the system
            raise
        raise StepsDamaged(str(path), one_line(error)) from error


class ColumnsAdded(Exception):
    """A column was found after tables without it were made: they are to be made again, by another `Merge`."""


class Merge(ExitStack):
    """`scan` finds what is recorded, `tables` gives it; both may be called again, while the streams are written, for the episodes
    that follow. `check` is called often, and may end the work by an exception. Files are open until it is closed.
    """

    def __init__(self, run_folder: Path, phase: str, *, check: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.schema: pa.Schema | None = None
        """Of the tables; None as long as nothing is recorded."""
        self.found = self.merged = 0
        """Rows that were scanned, and that are in tables."""
        self.paths: list[Path] = []
        """The streams, the oldest first."""
        self._run_folder = run_folder
        self._phase = phase
        self._check = check
        self._info: set[str] = set()
        self._cut: Cut | None = None
        self._ends: dict[tuple[str, str], int] = {("", ""): 0}
        self._sources: list[Callable[[int], pa.RecordBatch]] = []
        self._streams: dict[Path, tuple[StreamReader, int]] = {}
        self._batches: dict[tuple[int, int], tuple[pa.RecordBatch, int]] = {}
        """By source and offset, with the number of rows that were not used; the one that was used last is the last one."""
        self._held_bytes = 0
        self._group: list[pa.Table] = []
        self._group_rows = self._group_bytes = 0

    def scan(self) -> None:
        """Finds what there is by now. Raises OSError, StepsDamaged, UsageError."""
        path = parquet_of(self._run_folder, self._phase)
        streams = streams_of(self._run_folder, self._phase)  # first: they are removed when the file is there
        if not self._sources and path.exists():
            self._add_parquet(path)
        self.paths = [path for _, _, path in streams]
        for incarnation, worker, path in streams:
            self._check()
            if path not in self._streams:
                self._open(path)
            if path in self._streams:
                self._scan(*self._streams[path], worker=worker, incarnation=incarnation)

    def tables(self, *, below: int | None = None, episodes: IndexRanges | None = None) -> Iterator[pa.Table]:
        """The full row groups of the episodes before `below`; without it all that is left. Of `episodes` only, if they are
        given. Raises OSError.
        """
        if self.schema is None:
            return
        if self._cut is None:
            self._cut = Cut(self._rows_at_once(self.schema))
        for block in self._pieces.take(below):
            counted = self._pieces.last_attempts(block)
            if episodes is not None:
                bounds = np.array(episodes.bounds, np.int64)
                counted = counted[np.searchsorted(bounds, counted["episode"], "right") % 2 == 1]
            for pieces in self._cut.add(counted):
                yield from self._grouped(pieces)
        if below is None:
            for pieces in self._cut.rest():
                yield from self._grouped(pieces)
            if self._group:
                yield self._whole_group()

    def _grouped(self, pieces: NDArray[np.void]) -> Iterator[pa.Table]:
        self._check()
        table = self._table(pieces)
        self._group.append(table)
        self.merged += len(table)
        self._group_rows += len(table)
        self._group_bytes += table.nbytes
        if not self._varies or self._group_rows >= ROWS or self._group_bytes >= BYTES:
            yield self._whole_group()

    def _rows_at_once(self, schema: pa.Schema) -> int:
        """Rows of a table, of which a group has one, or several if their size varies."""
        most = (TEXT_ROWS if self._is_text else VARYING_ROWS) if self._varies else ROWS
        return max(1, min(most, int(8 * BYTES / pictures.row_bits(schema))))

    def _whole_group(self) -> pa.Table:
        group, self._group = self._group, []
        self._group_rows = self._group_bytes = 0
        return group[0] if len(group) == 1 else pa.concat_tables(group).combine_chunks()

    def _table(self, pieces: NDArray[np.void]) -> pa.Table:
        rows, counts = self._rows(pieces), pieces["rows"]

        def repeated(name: str) -> pa.Array:
            return array(np.repeat(pieces[name], counts))

        numbers, first, end = np.unique(pieces["end"], return_index=True, return_inverse=True)
        ends = [*self._ends]
        order = np.argsort(first)  # so that the words do not depend on what was read before
        words = [ends[number] for number in numbers[order]]
        end = np.repeat(np.argsort(order)[end], counts)
        before = {"phase": dictionary(np.zeros(len(end), np.int32), [self._phase])}
        behind = {"outcome": dictionary(end, [outcome for outcome, _ in words])}
        if self._is_text:
            before["started"] = repeated("episode").cast(STARTED)
            behind["reason"] = dictionary(end, [reason for _, reason in words])
        else:
            before |= {name: repeated(name) for name in MARKS}
            before["step"] = array(ranges(pieces["step"], counts))
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        return pa.table(before | columns | behind, schema=self.schema)

    def _rows(self, pieces: NDArray[np.void]) -> pa.Table:
        """The rows of the pieces, in their order. Each batch is read once, and only its rows of these are kept."""
        order = np.lexsort([pieces["offset"], pieces["source"]])
        by_batch = pieces[order]
        source, offset, counts = by_batch["source"], by_batch["offset"], by_batch["rows"]
        begins = np.flatnonzero(np.r_[True, (source[1:] != source[:-1]) | (offset[1:] != offset[:-1])])
        parts = []
        for begin, end in zip(begins, [*begins[1:], len(pieces)], strict=True):
            rows = ranges(by_batch["row"][begin:end], counts[begin:end])
            batch = self._batch(int(source[begin]), int(offset[begin]), len(rows))
            if (rows[1:] == rows[:-1] + 1).all():
                parts.append(batch.slice(int(rows[0]), len(rows)))
            else:
                parts.append(batch.take(array(rows)))
        table = pa.Table.from_batches(parts).combine_chunks()
        if (order[1:] > order[:-1]).all():
            return table
        at = np.empty(len(pieces), np.int64)
        at[order] = np.cumsum(counts) - counts
        return table.take(array(ranges(at, pieces["rows"])))

    def _batch(self, source: int, offset: int, rows: int) -> pa.RecordBatch:
        """A batch of which so many `rows` are used now. It is held until all are, or others are used."""
        batch, left = self._batches.pop((source, offset), (None, 0))
        if batch is None:
            batch = aligned(self._sources[source](offset), self._rows_schema)
            left = batch.num_rows
        else:
            self._held_bytes -= batch.nbytes
        if left > rows:
            self._batches[source, offset] = batch, left - rows
            self._held_bytes += batch.nbytes
        while self._held_bytes > CACHE:
            oldest, _ = self._batches.pop(next(iter(self._batches)))
            self._held_bytes -= oldest.nbytes
        return batch

    # -- sources --------------------------------------------------------------------------------------------

    def _open(self, path: Path) -> None:
        reader = StreamReader(path)
        if reader.schema is None:
            reader.close()
        else:
            self.callback(reader.close)
            self._streams[path] = reader, self._add(reader.schema, partial(batch_of, reader))

    def _scan(self, reader: StreamReader, source: int, *, worker: int, incarnation: int) -> None:
        runs: list[RunValues] = []
        offsets: list[int] = []
        counts: list[int] = []

        def gather() -> None:
            if runs:
                pieces = _pieces_of(runs, offsets, counts, self._ends)
                pieces["incarnation"], pieces["worker"], pieces["source"] = incarnation, worker, source
                self._found(pieces)
            for one in (runs, offsets, counts):
                one.clear()

        for offset, of_batch, metadata in reader.scan():
            self._find_info(names_of(metadata))
            runs += of_batch
            offsets.append(offset)
            counts.append(len(of_batch))
            if len(runs) >= GATHERED:
                gather()
                self._check()
        gather()

    def _add_parquet(self, path: Path) -> None:
        """Adds it as the oldest source: a stream that still exists is as new or newer."""
        with reading(path):
            file = pq.ParquetFile(path)
        self.callback(file.close)
        schema = rows_schema(pictures.given_schema(file.schema_arrow))
        source = self._add(schema, partial(_row_group, path, file, schema))
        marks = ["started", "session"] if self._is_text else [*MARKS]
        columns = [*marks, *(name for name in LAST if name in file.schema_arrow.names)]
        for group in range(file.num_row_groups):
            self._check()
            with reading(path):
                table = file.read_row_group(group, columns=columns, use_threads=False)
            pieces = _pieces_of_group(table, self._ends)
            pieces["source"], pieces["offset"] = source, group
            self._found(pieces)

    def _add(self, schema: pa.Schema, batch: Callable[[int], pa.RecordBatch]) -> int:
        if self.schema is None:
            self._rows_schema = without_info(schema)
            self.schema = table_schema(self._rows_schema)
            self._is_text = is_text(schema)
            self._varies = self._is_text or varies(self._rows_schema)
            folder = folder_of(self._run_folder)
            room = folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir())
            self._pieces = Pieces(room, keys=("seed", "episode") if self._is_text else ("episode",))
            self.callback(self._pieces.close)
        elif not without_info(schema).equals(without_info(self._rows_schema)):
            raise UsageError(
                f"phase {self._phase!r} was recorded with other spaces before: its steps are no one table"
            )
        self._find_info(names_in(schema))
        self._sources.append(batch)
        return len(self._sources) - 1

    def _find_info(self, names: Iterable[str]) -> None:
        """Adds the columns of numbers from `info`. Raises ColumnsAdded."""
        if self._info.issuperset(names):
            return
        self._info.update(names)
        self._rows_schema = with_info(self._rows_schema, self._info)
        self.schema = table_schema(self._rows_schema)
        if self._cut is not None:
            raise ColumnsAdded

    def _found(self, pieces: NDArray[np.void]) -> None:
        self.found += int(pieces["rows"].sum())
        self._pieces.add(pieces)


def _pieces_of(
    runs: Sequence[RunValues], offsets: Sequence[int], counts: Sequence[int], ends: dict[tuple[str, str], int]
) -> NDArray[np.void]:
    """Of the runs of several batches: `counts` of them in each, at `offsets`."""
    pieces = np.zeros(len(runs), PIECE)
    *numbers, outcomes, reasons = zip(*runs, strict=True)
    for name, values in zip(("episode", "attempt", "seed", "step", "rows"), numbers, strict=True):
        pieces[name] = values
    pieces["end"] = [ends.setdefault(end, len(ends)) for end in zip(outcomes, reasons, strict=True)]
    pieces["offset"] = np.repeat(offsets, counts)
    before = np.cumsum(pieces["rows"]) - pieces["rows"]
    first_of_batch = np.cumsum(counts) - counts
    pieces["row"] = before - np.repeat(before[first_of_batch], counts)
    return pieces


def _pieces_of_group(table: pa.Table, ends: dict[tuple[str, str], int]) -> NDArray[np.void]:
    """Of the rows of one row group: a piece for each episode in it."""
    keys = ["started", "session"] if "session" in table.column_names else ["episode"]
    values = {name: np.asarray(table[name]) for name in {*keys, *MARKS} & {*table.column_names}}
    changed = np.any([values[key][1:] != values[key][:-1] for key in keys], axis=0)
    begins = np.flatnonzero(np.r_[len(table) > 0, changed])
    pieces = np.zeros(len(begins), PIECE)
    pieces["row"], pieces["rows"] = begins, np.diff(np.r_[begins, len(table)])
    if "session" in values:
        pieces["episode"] = values["started"].astype("datetime64[us]").astype(np.int64)[begins]
        pieces["seed"] = [session_number(session) for session in values["session"][begins]]
        pieces["attempt"] = 1
    for name in MARKS.keys() & values.keys():
        pieces[name] = values[name][begins]
    last = [table[name].take(array(begins)).to_pylist() for name in LAST if name in table.column_names]
    outcomes, reasons = last if len(last) == len(LAST) else (*last, [""] * len(begins))
    words = [(outcome or "", reason or "") for outcome, reason in zip(outcomes, reasons, strict=True)]
    pieces["end"] = [ends.setdefault(word, len(ends)) for word in words]
    return pieces


def _row_group(path: Path, file: pq.ParquetFile, schema: pa.Schema, group: int) -> pa.RecordBatch:
    with reading(path):
        table = file.read_row_group(group, columns=schema.names, use_threads=False)
    table = pictures.given(table).combine_chunks()
    return pa.RecordBatch.from_arrays([column.chunk(0) for column in table.columns], schema=schema)
