"""Episodes of one worker, read back from its streams in the order in which they were played: for an agent that learns them again.

Rules:
1. An episode counts as its last attempt that has ended, in the newest stream that has one: as in the table of steps (`merge`).
2. Memory holds a batch of steps, and where the rows of one episode lie.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from governor.episodes.records.episode_file import streams_of
from governor.episodes.records.stream import StreamReader, lasts_of
from governor.episodes.spaces import Dict, Discrete, Text, Tuple, decoder, is_array, storage
from governor.errors import ConductorError
from governor.index_ranges import IndexRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from governor.episodes.spaces import SpaceSpec


class Step(NamedTuple):
    """As it was recorded, in the form of the spaces."""

    observation: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool


class _Part(NamedTuple):
    """Rows of an episode in one batch."""

    offset: int
    row: int
    rows: int


@dataclass(slots=True, eq=False)
class RecordedEpisode:
    """`last` is the encoding of the observation that its last step led to; None if that is not on record."""

    index: int
    attempt: int
    seed: int
    outcome: str = ""
    last: Any = None
    rows: int = 0
    parts: list[_Part] = field(default_factory=list)


class EpisodeReader(ExitStack):
    """Of a phase in which one worker plays with these `spaces` of observations and actions. Files are open until it is closed."""

    def __init__(self, run_folder: Path, phase: str, *, spaces: tuple[SpaceSpec, SpaceSpec]) -> None:
        """Raises OSError, and ConductorError for spaces whose values are not read back."""
        super().__init__()
        self._readers: list[tuple[StreamReader, StreamReader]] = []
        """One that scans a stream, and one for its batches."""
        self._makers = [_maker(of) for of in spaces]
        self.last_of = decoder(spaces[0])
        """From the encoding of `RecordedEpisode.last` to the observation."""
        for _, worker, path in streams_of(run_folder, phase):
            if worker == 0:
                pair = StreamReader(path), StreamReader(path)
                for reader in pair:
                    self.callback(reader.close)
                self._readers.append(pair)

    def episodes(
        self, wanted: IndexRanges, *, check: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[RecordedEpisode, Iterator[Step]]]:
        """Those of `wanted` that are on record, with their steps, which are read while they are taken. `check` is called often. Raises
        OSError.
        """
        inside = [self._ended_in(reader, check) for reader, _ in self._readers]
        for place, (reader, batches) in enumerate(self._readers):
            newer = inside[place + 1 :]
            for episode in self._of_stream(reader, wanted, check):
                if not any(episode.index in each for each in newer):
                    yield episode, self._steps(batches, episode)

    @staticmethod
    def _ended_in(reader: StreamReader, check: Callable[[], None]) -> IndexRanges:
        found = IndexRanges()
        for _, runs, _ in reader.scan():
            check()
            for index, _, _, _, _, outcome, _ in runs:
                if outcome:
                    found.add(index)
        reader.rewind()
        return found

    @staticmethod
    def _of_stream(
        reader: StreamReader, wanted: IndexRanges, check: Callable[[], None]
    ) -> Iterator[RecordedEpisode]:
        current: RecordedEpisode | None = None
        for offset, runs, metadata in reader.scan():
            check()
            lasts = lasts_of(metadata)
            row = 0
            for place, (index, attempt, seed, _, rows, outcome, _) in enumerate(runs):
                begin, row = row, row + rows
                if index not in wanted:
                    continue
                if current is None or (current.index, current.attempt) != (index, attempt):
                    # The next attempt at an episode follows at once: until then it is not known which one is the last.
                    if current is not None and current.outcome and current.index != index:
                        yield current
                    current = RecordedEpisode(index, attempt, seed)
                current.outcome = outcome
                current.rows += rows
                if rows:
                    current.parts.append(_Part(offset, begin, rows))
                current.last = lasts[place] if place < len(lasts) else None
        if current is not None and current.outcome:
            yield current

    def _steps(self, reader: StreamReader, episode: RecordedEpisode) -> Iterator[Step]:
        for part in episode.parts:
            batch = reader.batch(part.offset).slice(part.row, part.rows)
            observed, acted = (
                make(batch.column(name))
                for make, name in zip(self._makers, ("observation", "action"), strict=True)
            )
            others = [batch.column(name).to_pylist() for name in ("reward", "terminated", "truncated")]
            for row, (reward, terminated, truncated) in enumerate(zip(*others, strict=True)):
                yield Step(observed(row), acted(row), reward, terminated, truncated)


def _maker(spec: SpaceSpec) -> Callable[[pa.Array], Callable[[int], Any]]:
    """From a column to a function from a row to the value. Raises ConductorError."""
    if is_array(spec):
        dtype, shape = storage(spec)
        if dtype.kind != "b" and 0 not in shape:
            size = int(np.prod(shape, dtype=np.int64))

            def arrays(column: pa.Array) -> Callable[[int], Any]:
                flat = np.frombuffer(column.values.buffers()[1], dtype)
                flat = flat[column.values.offset :]
                rows = flat[column.offset * size : (column.offset + len(column)) * size]
                whole = rows.reshape(len(column), *shape)
                return lambda row: whole[row, ...].copy()

            return arrays
    value = _from_plain(spec)

    def plain(column: pa.Array) -> Callable[[int], Any]:
        found = column.to_pylist()
        return lambda row: value(found[row])

    return plain


def _from_plain(spec: SpaceSpec) -> Callable[[Any], Any]:
    """From a value as Arrow gives it."""
    match spec:
        case Discrete() | Text():
            return lambda found: found
        case Dict():
            of_keys = [
                (key, str(key), _from_plain(part)) for key, part in zip(spec.keys, spec.spaces, strict=True)
            ]
            return lambda found: {key: make(found[name]) for key, name, make in of_keys}
        case Tuple():
            of_places = [(str(place), _from_plain(part)) for place, part in enumerate(spec.spaces)]
            return lambda found: tuple(make(found[name]) for name, make in of_places)
        case _ if is_array(spec):
            dtype, shape = storage(spec)
            return lambda found: np.array(found, dtype).reshape(shape)
        case _:
            raise ConductorError(f"values of a {type(spec).__name__} are not read back from the record")
