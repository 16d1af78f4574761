"""Steps of a vector of environments that step together, from its loop to disk: an array for each column, and no object for a step.

Rules:
1. A step of all is one copy of each array; later changes of the given arrays are not recorded. Arrow takes the columns of an episode as they lie.
2. One stream has the episodes of all environments. An episode that goes on when the arrays are full is written in parts.
   An episode that is played again has a stream of its own, which is younger than those with its earlier attempts.
3. All of an episode is written to the kernel when `flush` returns: it is reported after that.
4. Values are not checked: the caller has brought them into the form of their spaces.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from governor.episodes.records.stream import Stream, StreamedRun
from governor.episodes.spaces import storage

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from governor.episodes.records.recording import Columns

BYTES: Final = 8 << 20
"""Of the arrays of one recorder."""
ROUNDS: Final = 1024
"""Steps of all that the arrays hold at most."""


@dataclass(slots=True)
class _Playing:
    """The episode of one environment: where its steps begin in the arrays, and which number the first of them has."""

    episode: int
    attempt: int
    seed: int
    slot: int
    stream: Stream
    first_row: int
    first_step: int = 0

    def part(self, row: int, outcome: str) -> _Part:
        """Its steps before that row."""
        run = StreamedRun(
            episode=self.episode,
            attempt=self.attempt,
            seed=self.seed,
            step=self.first_step,
            rows=row - self.first_row,
            outcome=outcome,
        )
        return _Part(self.stream, run, self.slot, self.first_row)


class _Part(NamedTuple):
    """What is written of an episode."""

    stream: Stream
    run: StreamedRun
    slot: int
    first_row: int


class BatchRecorder:
    """For the thread of its worker; `end` and `flush` also for the watch, which may have declared that thread hung.

    `columns` are those of one agent whose observations and actions are arrays or Discrete; `slots`: the number of environments.
    """

    def __init__(self, folder: Path, *, phase: str, worker: int, columns: Columns, slots: int) -> None:
        """`folder` is the run's. The file is made with the first write."""
        spaces = columns.alone
        if spaces is None:
            raise ValueError("the columns are those of several players")
        self.columns = columns
        self.lost: dict[int, OSError] = {}
        """Episodes whose steps are not all on disk."""
        self.taken = 0
        """Steps so far; for any thread."""
        self._make_stream = partial(Stream, folder, phase=phase, worker=worker, schema=columns.schema)
        self._stream = self._make_stream()
        self._most = rounds = max(1, min(ROUNDS, BYTES // (slots * spaces.row_bytes)))
        self._arrays: list[NDArray[Any]] = [
            np.empty((rounds, slots, *shape), dtype)
            for dtype, shape in (
                storage(spaces.observation),  # type: ignore[arg-type]  # as the caller says
                storage(spaces.action),  # type: ignore[arg-type]
                (np.dtype(np.float64), ()),
                (np.dtype(np.bool_), ()),
                (np.dtype(np.bool_), ()),
                (np.dtype(np.int64), ()),
            )
        ]
        self._lock = threading.RLock()
        self._row = 0
        self._playing: dict[int, _Playing] = {}
        self._ended: list[_Part] = []

    def begin(self, slot: int, *, episode: int, seed: int, retries: int = 0) -> None:
        """`retries`: so many attempts at it have failed, perhaps with another recorder."""
        stream = self._make_stream() if retries else self._stream
        with self._lock:
            self.lost.pop(episode, None)
            self._playing[slot] = _Playing(episode, retries + 1, seed, slot, stream, self._row)

    def add(self, *columns: NDArray[Any] | int, steps: int) -> None:
        """A step of all: observations, actions, rewards, terminated, truncated, and the version of the weights. `steps`: so many of
        them belong to an episode. Raises OSError if the arrays are full and cannot be written.
        """
        row = self._row
        for array, values in zip(self._arrays, columns, strict=True):
            array[row] = values
        self.taken += steps
        self._row = row + 1
        if self._row == self._most:
            self._write_all()

    def end(self, slot: int, *, outcome: str) -> None:
        with self._lock:
            playing = self._playing.pop(slot, None)
            if playing is not None:  # else the watch has declared it hung
                self._ended.append(playing.part(self._row, outcome))

    def flush(self) -> None:
        """Writes the episodes that have ended to the kernel. Raises OSError: steps that were not written are dropped."""
        with self._lock:
            ended, self._ended = self._ended, []
            if not self._playing:
                self._row = 0
            self._write(ended)

    def _write_all(self) -> None:
        """Raises OSError."""
        with self._lock:
            parts, self._ended = self._ended, []
            for playing in self._playing.values():
                part = playing.part(self._row, "")
                if part.run.rows:
                    parts.append(part)
                playing.first_step += part.run.rows
                playing.first_row = 0
            self._row = 0
            self._write(parts)

    def _write(self, parts: list[_Part]) -> None:
        fault = None
        for _, group in groupby(sorted(parts, key=_stream_of), _stream_of):
            together = [*group]
            stream, runs = together[0].stream, [part.run for part in together]
            columns = [
                np.concatenate([array[first : first + run.rows, slot] for _, run, slot, first in together])
                for array in self._arrays
            ]
            try:
                stream.append(self.columns.batch_of_arrays(columns), runs)
            except OSError as error:
                self.lost.update((run.episode, error) for run in runs)
                fault = error
            if stream is not self._stream and runs[-1].outcome:
                stream.close()
        if fault is not None:
            raise fault

    def close(self) -> None:
        """Drops steps that are not written. May be called again."""
        for stream in {self._stream, *(playing.stream for playing in self._playing.values())}:
            stream.close()


def _stream_of(part: _Part) -> int:
    return id(part.stream)
