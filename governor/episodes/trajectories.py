"""Recorded steps, read back: ``pandas.read_parquet("<run folder>/episodes/<phase>.parquet")`` when a phase has ended.

Rules:
1. While a phase runs, and after a crash, its steps are in streams (`stream`). A `Conversion` writes one Parquet file of them
   (zstd), renames it when it is complete and synced, then removes the streams. Readers get the same before and after.
2. A conversion that ended before, also by SIGKILL, is begun anew: the streams are what counts, and the file of the same
   steps is the same, byte for byte.
3. Rows are in order of episode and step (`merge`), their columns in `step_columns`; `pictures` are bytes in the file alone.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from governor.episodes.records import episode_file, pictures
from governor.episodes.records.episode_file import SUFFIX, folder_of, parquet_of, streams_of
from governor.episodes.records.info_columns import aligned, names_in, with_info, without_info
from governor.episodes.records.merge import ColumnsAdded, Merge, reading
from governor.episodes.records.step_columns import is_text, rows_schema, table_schema
from governor.errors import UsageError
from governor.files import put_in_place, temporary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from governor.index_ranges import IndexRanges

SAMPLE: Final = 4096
"""Of the first numbers of a column: what is looked at to choose its encoding."""


def phases_of(run_folder: Path) -> list[str]:
    """The phases with recorded steps."""
    folder = folder_of(run_folder)
    names = {path.stem for path in folder.glob("*.parquet")}
    names |= {path.name.removesuffix(SUFFIX).rsplit(".", 2)[0] for path in folder.glob(f"*.*.*{SUFFIX}")}
    return sorted(unquote(name) for name in names)


class Conversion:
    """The Parquet file of a phase while it is made, for one thread at a time. After `discard` it may be begun anew.

    `check` is called several times a second, and may end the work by an exception: the streams and an earlier Parquet file stay
    unchanged then, as after any other error.
    """

    def __init__(self, run_folder: Path, phase: str, *, check: Callable[[], None] = lambda: None) -> None:
        self._run_folder = run_folder
        self._phase = phase
        self._check = check
        self._path = parquet_of(run_folder, phase)
        self._beside = temporary(self._path)
        self._merge: Merge | None = None
        self._writer: pq.ParquetWriter | None = None

    @property
    def steps(self) -> tuple[int, int]:
        """How many are in the file, and how many were found so far; for any thread."""
        return (0, 0) if self._merge is None else (self._merge.merged, self._merge.found)

    def advance(self, below: int) -> None:
        """Writes the full row groups of the episodes before `below`, which have all ended. Raises OSError, UsageError."""
        merge = self._scanned()
        self._write(merge.tables(below=below))

    def finish(self, episodes: IndexRanges | None = None) -> Path | None:
        """Makes the file whole, with only `episodes` if they are given; None if nothing was recorded. Raises OSError, UsageError."""
        if not streams_of(self._run_folder, self._phase):
            self.discard()
            return self._path if self._path.exists() else None
        merge = self._scanned()
        if merge.schema is not None:
            self._write(merge.tables(episodes=episodes))
            if self._writer is None:
                self._writer = _writer(self._beside, pictures.stored(merge.schema.empty_table()))
            self._writer.close()
            self._check()
            put_in_place(self._beside, self._path)
        # The oldest first: those that are left, should this end here, say what is newer.
        for stream in merge.paths:
            stream.unlink()
        self.discard()
        return self._path if self._path.exists() else None

    def discard(self) -> None:
        """Removes what is not whole. May be called again."""
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()
        if self._merge is not None:
            self._merge.close()
        self._writer = self._merge = None
        with suppress(OSError):
            self._beside.unlink(missing_ok=True)

    def _scanned(self) -> Merge:
        while True:
            if self._merge is None:
                self._beside.unlink(missing_ok=True)  # of a process that was killed: it takes room
                self._merge = Merge(self._run_folder, self._phase, check=self._check)
            try:
                self._merge.scan()
            except ColumnsAdded:
                self.discard()
            else:
                return self._merge

    def _write(self, tables: Iterator[pa.Table]) -> None:
        for table in map(pictures.stored, tables):
            if self._writer is None:
                self._writer = _writer(self._beside, table)
            self._writer.write_table(table)
            del table  # before the next one is made
            pa.default_memory_pool().release_unused()  # else it keeps some tens of MB


def _writer(path: Path, first: pa.Table) -> pq.ParquetWriter:
    """For tables as the `first` one. A column of numbers that hardly repeat has no dictionary: with one, CartPole's observations
    take 1.6 times the room and three times as long.
    """
    chunks = [(name, first[name].chunk(0)) for name in first.column_names if first[name].num_chunks]
    leaves = [leaf for name, chunk in chunks for leaf in _leaves(name, chunk)]
    repeating = [path for path, values in leaves if not _hardly_repeats(values)]
    return pq.ParquetWriter(path, first.schema, compression="zstd", use_dictionary=repeating or False)


def _leaves(path: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """The columns that Parquet makes of this one, under its paths."""
    kind = column.type
    if pa.types.is_struct(kind):
        for index, field in enumerate(kind.fields):
            yield from _leaves(f"{path}.{field.name}", column.field(index))
    elif pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _leaves(f"{path}.list.element", column.values)
    else:
        yield path, column


def _hardly_repeats(values: pa.Array) -> bool:
    """Most floats, and pictures, which are compressed where they do. Read from the buffer: `flatten` and `to_numpy` import pyarrow.compute and pandas, which are 40 MB."""
    if pa.types.is_fixed_size_binary(values.type):
        return True
    if not pa.types.is_floating(values.type) or not len(values):
        return False
    numbers = np.frombuffer(values.buffers()[1], f"f{values.type.bit_width // 8}")
    some = numbers[values.offset : values.offset + min(SAMPLE, len(values))]
    return 2 * len(np.unique(some)) > len(some)


def finalize(run_folder: Path, phase: str, *, episodes: IndexRanges | None = None) -> Path | None:
    """Makes the Parquet file of the phase, with only `episodes` if they are given; None if nothing was recorded.

    Raises OSError, UsageError; the streams and an earlier Parquet file stay unchanged then.
    """
    conversion = Conversion(run_folder, phase)
    try:
        return conversion.finish(episodes)
    finally:
        conversion.discard()


def tables(
    run_folder: Path, phase: str, *, ended: bool = False
) -> tuple[pa.Schema, Iterator[pa.Table]] | None:
    """The recorded steps of a phase, a row group at a time; None without any. `ended`: of the phase's episodes on record alone, as
    in its file; not for sessions with a language model. Raises OSError, StepsDamaged.
    """
    path = parquet_of(run_folder, phase)
    if path.exists() and not streams_of(run_folder, phase):
        with reading(path):
            file = pq.ParquetFile(path)
        schema = table_schema(rows_schema(pictures.given_schema(file.schema_arrow)))
        return schema, _groups(path, file, schema)
    with ExitStack() as unless_found:
        merge = unless_found.enter_context(Merge(run_folder, phase))
        merge.scan()
        if merge.schema is None:
            return None
        unless_found.pop_all()
        lines = episode_file.path_of(run_folder, phase)
        if not ended or is_text(merge.schema) or not lines.exists():
            return merge.schema, _closing(merge)
        return merge.schema, _closing(merge, episodes=episode_file.indices_of(lines))


def _groups(path: Path, file: pq.ParquetFile, schema: pa.Schema) -> Iterator[pa.Table]:
    with file:
        for group in range(file.num_row_groups):
            with reading(path):
                table = file.read_row_group(group, columns=schema.names, use_threads=False)
            yield pa.Table.from_arrays(pictures.given(table).columns, schema=schema)


def _closing(merge: Merge, *, episodes: IndexRanges | None = None) -> Iterator[pa.Table]:
    with merge:
        yield from merge.tables(episodes=episodes)


def read(run_folder: str | Path, phase: str | None = None) -> pa.Table:
    """All steps of a phase, or of all phases, finalized or not, as one table in memory with a row for each step (see rule 4).
    Raises UsageError without steps or if the phases differ in their columns, and OSError.
    """
    run_folder = Path(run_folder)
    phases = phases_of(run_folder) if phase is None else [phase]
    found = [one for name in phases if (one := tables(run_folder, name)) is not None]
    if not found:
        raise UsageError(f"no steps are on record in {folder_of(run_folder)}")
    schema = common_schema([schema for schema, _ in found])
    if schema is None:
        raise UsageError(
            f"the phases {', '.join(map(repr, phases))} have different columns: read one of them"
        )
    return pa.concat_tables(
        [pa.Table.from_batches([], schema), *(aligned(table, schema) for _, one in found for table in one)]
    )


def common_schema(schemas: Sequence[pa.Schema]) -> pa.Schema | None:
    """The columns of tables together: they may differ in numbers of `info` alone; None if they do otherwise."""
    plain = [without_info(schema).remove_metadata() for schema in schemas]
    if any(not schema.equals(plain[0]) for schema in plain):
        return None
    names = sorted({name for schema in schemas for name in names_in(schema)})
    return table_schema(with_info(rows_schema(schemas[0]), names))
