"""Steps on their way to disk: an Arrow IPC stream that is readable whenever its process exits.

Rules:
1. Data of `Stream.append` is written to the kernel when it returns. A failed write leaves no trace, so that the next one
   may succeed.
2. Each batch states which episodes its rows belong to (`StreamedRun`), in the order of the rows, so values that are the
   same for all steps of an episode are not written with each step.
3. Only the process that made a stream writes to it: a later process makes a stream with a higher number, its
   `incarnation`, which takes precedence for its episodes.
4. A reader takes the complete batches: a torn tail is the end of a stream.
"""

from __future__ import annotations

import io
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from governor import files
from governor.episodes.records import pictures
from governor.episodes.records.episode_file import SUFFIX, folder_of, streams_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_ALONE: Final = pa.ipc.IpcReadOptions(use_threads=False)
"""This process may be forked: it has no pool of threads."""


class StreamedRun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`rows` rows of one attempt at an episode; `step` is the number of the first one, from 0.

    `outcome` is empty until the attempt has ended: a run without rows states only an end.
    """

    episode: int
    attempt: int
    seed: int
    step: int
    rows: int
    outcome: str = ""
    reason: str = ""


RunValues: TypeAlias = tuple[int, int, int, int, int, str, str]
"""A `StreamedRun` as it is read: there are millions."""
_RUNS: Final = b"runs"
_LASTS: Final = b"lasts"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[RunValues]).decode


def next_incarnation(run_folder: Path, phase: str) -> int:
    """That of streams which take precedence over all existing ones."""
    before = streams_of(run_folder, phase)
    return before[-1][0] + 1 if before else 1


def create(run_folder: Path, phase: str, worker: int, incarnation: int) -> int:
    """The descriptor of a new file, for a stream of this incarnation, or a higher one if there is that already."""
    folder = folder_of(run_folder)
    folder.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    while True:
        try:
            return os.open(folder / f"{files.name_of(phase)}.{worker}.{incarnation}{SUFFIX}", flags, 0o644)
        except FileExistsError:
            incarnation += 1


class Stream:
    """The file is made with the first batch. Not for several threads at once."""

    def __init__(self, run_folder: Path, *, phase: str, worker: int, schema: pa.Schema) -> None:
        self._create = partial(create, run_folder, phase, worker, next_incarnation(run_folder, phase))
        self._schema = schema
        self._head = schema.serialize().size
        self._options = pa.ipc.IpcWriteOptions(compression=pictures.compression(schema), use_threads=False)
        self._file = -1
        self._has_head = False

    def append(
        self, batch: pa.RecordBatch, runs: Sequence[StreamedRun], known: Mapping[bytes, bytes] | None = None
    ) -> None:
        """`known` goes into its metadata. Raises OSError, and nothing of this batch is in the file then."""
        if self._file < 0:
            self._file = self._create()
        made = pa.BufferOutputStream()
        # Made anew each time, and never closed: the file has one schema, and no end but where it ends.
        metadata = {_RUNS: _encode(runs), **(known or {})}
        writer = pa.ipc.new_stream(made, self._schema, options=self._options)
        writer.write_batch(batch, custom_metadata=metadata)
        data = memoryview(made.getvalue())[self._head if self._has_head else 0 :]
        files.append(self._file, data)
        self._has_head = True

    def close(self) -> None:
        """May be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._has_head = False


def lasts_known(lasts: Sequence[Any]) -> dict[bytes, bytes]:
    """For the metadata of a batch: of its runs, in their order, the encodings of the observations that followed their last steps,
    None where there is none.
    """
    return {} if all(last is None for last in lasts) else {_LASTS: msgspec.msgpack.encode(lasts)}


def lasts_of(metadata: Mapping[bytes, bytes]) -> list[Any]:
    """Back again; there may be fewer than runs."""
    found: list[Any] = msgspec.msgpack.decode(metadata[_LASTS]) if _LASTS in metadata else []
    return found


def array(values: NDArray[Any], *, valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers as an Arrow array. `pyarrow.array` would do, and would import pandas where it is installed: 0.2 s."""
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype),
        len(values),
        [
            None if valid is None else bits(valid),
            bits(values) if values.dtype == np.bool_ else _bytes(values),
        ],
    )


def texts(words: Sequence[str], *, valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """Likewise."""
    data = [word.encode() for word in words]
    offsets = np.cumsum([0, *map(len, data)]).astype(np.int32)
    known = None if valid is None else bits(valid)
    return pa.StringArray.from_buffers(len(words), _bytes(offsets), pa.py_buffer(b"".join(data)), known)


def bits(flags: NDArray[np.bool_]) -> pa.Buffer:
    """As Arrow has them."""
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _bytes(values: NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(values))


class StreamReader:
    """Batches of a stream by their offsets. A file without a whole schema has no batches; `schema` is None then."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = pa.OSFile(str(path), "rb")
        self.schema: pa.Schema | None = None
        self.next = self._first = 0
        """The offset of the first batch that was not scanned."""
        try:
            self.schema = pa.ipc.open_stream(self._file, options=_ALONE).schema
            self.next = self._first = self._file.tell()
            self._file.seek(0)
            self._head = self._file.read(self.next)
        except (pa.ArrowInvalid, OSError, EOFError) as error:
            _raise_unless_torn(error)

    def close(self) -> None:
        self._file.close()

    def scan(self) -> Iterator[tuple[int, list[RunValues], Mapping[bytes, bytes]]]:
        """Offset, runs and metadata of each batch behind the last one scanned, up to the end or the tear."""
        if self.schema is None:
            return
        self._file.seek(self.next)
        reader = pa.ipc.open_stream(pa.PythonFile(_Behind(self._head, self._file), mode="r"), options=_ALONE)
        while True:
            try:
                _, metadata = reader.read_next_batch_with_custom_metadata()
            except (StopIteration, pa.ArrowInvalid, OSError) as error:
                _raise_unless_torn(error)
                return
            offset, self.next = self.next, self._file.tell()
            yield offset, _decode(metadata[_RUNS]), metadata

    def rewind(self) -> None:
        """Scans from the first batch again."""
        self.next = self._first

    def batch(self, offset: int) -> pa.RecordBatch:
        self._file.seek(offset)
        return pa.ipc.read_record_batch(pa.ipc.read_message(self._file), self.schema)

    def batch_with_metadata(self, offset: int) -> tuple[pa.RecordBatch, Mapping[bytes, bytes]]:
        self._file.seek(offset)
        reader = pa.ipc.open_stream(pa.PythonFile(_Behind(self._head, self._file), mode="r"), options=_ALONE)
        batch, metadata = reader.read_next_batch_with_custom_metadata()
        return batch, metadata


def _raise_unless_torn(error: Exception) -> None:
    """Arrow's own errors, of a stream that ends too early, have no number; those of the disk have one."""
    if isinstance(error, OSError) and error.errno:
        raise error


class _Behind(io.RawIOBase):
    """A schema, followed by what is read of a file."""

    def __init__(self, head: bytes, file: pa.OSFile) -> None:
        super().__init__()
        self._head = head
        self._file = file

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data, self._head = self._head[:size], self._head[size:]
        return data or self._file.read(size)
