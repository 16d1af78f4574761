"""Steps of a vector of environments that step together, from its loop to disk: an array for each column, and no object for a step.

Rules:
1. The loop puts its steps into the rows of a `StepBuffer`. Of those that belong to episodes the columns for Arrow are taken, one episode
   after the other, when they are written.
2. One stream has the episodes of all environments. An episode that goes on when the buffer is full is written in parts.
   An episode that is played again has a stream of its own, which is younger than those with its earlier attempts.
3. All of an episode is written to the kernel when `flush` returns: it is reported after that.
4. Values are not checked: the caller has brought them into the form of their spaces.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from governor.episodes.records.pieces import ranges
from governor.episodes.records.step_buffer import StepBuffer
from governor.episodes.records.stream import Stream, StreamedRun

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from governor.episodes.records.recording import Columns

BYTES: Final = 8 << 20
"""Of the buffer of one recorder."""
ROUNDS: Final = 1024
"""Steps of all that the buffer holds at most."""


@dataclass(slots=True)
class _Playing:
    """The episode of one environment: where its steps begin in the buffer, and which number the first of them has."""

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
        rounds = min(ROUNDS, BYTES // (slots * spaces.row_bytes) - 1)
        self.buffer = StepBuffer(
            spaces.observation,  # type: ignore[arg-type]  # as the caller says
            spaces.action,  # type: ignore[arg-type]
            slots=slots,
            rounds=max(1, rounds),
        )
        self._taken_rows = [
            np.empty((column.shape[0] * slots, *column.shape[2:]), column.dtype)
            for column in self.buffer.columns
        ]
        self._lock = threading.RLock()
        self._playing: dict[int, _Playing] = {}
        self._ended: list[_Part] = []
        self._is_in_step = False
        self._broken_off: Counter[int] = Counter()
        """How often episodes ended with their process."""

    def begin(self, slot: int, *, episode: int, seed: int, retries: int = 0) -> None:
        """`retries`: so many attempts at it have failed, perhaps with another recorder."""
        before = retries + self._broken_off[episode]
        stream = self._make_stream() if before else self._stream
        with self._lock:
            self.lost.pop(episode, None)
            self._playing[slot] = _Playing(episode, before + 1, seed, slot, stream, self.buffer.row)

    def begin_step(self) -> int:
        """The row that the next step goes into; it stays until `add`, whatever ends before."""
        self._is_in_step = True
        return self.buffer.row

    def add(self, steps: int) -> None:
        """A step of all is in its row; so many of them belong to an episode."""
        self._is_in_step = False
        self.taken += steps
        self.buffer.row += 1

    def end(self, slot: int, *, outcome: str) -> None:
        with self._lock:
            playing = self._playing.pop(slot, None)
            if playing is not None:  # else the watch has declared it hung
                self._ended.append(playing.part(self.buffer.row, outcome))
                if outcome == "crashed":
                    self._broken_off[playing.episode] += 1

    def flush(self) -> None:
        """Writes the episodes that have ended to the kernel. Raises OSError: steps that were not written are dropped."""
        with self._lock:
            ended, self._ended = self._ended, []
            try:
                self._write(ended)
            finally:
                if not (self._playing or self._is_in_step):
                    self.buffer.rewind()

    def make_room(self) -> None:
        """Writes all steps if the buffer is full. Raises OSError: they are dropped."""
        if self.buffer.row < self.buffer.rounds:
            return
        with self._lock:
            parts, self._ended = self._ended, []
            for playing in self._playing.values():
                part = playing.part(self.buffer.row, "")
                if part.run.rows:
                    parts.append(part)
                playing.first_step += part.run.rows
                playing.first_row = 0
            try:
                self._write(parts)
            finally:
                self.buffer.rewind()

    def _write(self, parts: list[_Part]) -> None:
        fault = None
        of_streams: dict[Stream, list[_Part]] = {}
        for part in parts:  # an attempt that comes first makes the older file
            of_streams.setdefault(part.stream, []).append(part)
        for stream, together in of_streams.items():
            runs = [part.run for part in together]
            try:
                stream.append(self.columns.batch_of_arrays(self._columns(together)), runs)
            except OSError as error:
                self.lost.update((run.episode, error) for run in runs)
                fault = error
            if stream is not self._stream and runs[-1].outcome:
                stream.close()
        if fault is not None:
            raise fault

    def _columns(self, parts: list[_Part]) -> list[NDArray[Any]]:
        """Their steps, one part after the other, valid until the next call. To take rows by their numbers needs a fifth of the time of
        slices, and an array that is made anew each time ten times as long: the system has to find memory for it.
        """
        buffer = self.buffer
        slots, begins, counts = np.array([(part.slot, part.first_row, part.run.rows) for part in parts]).T
        rows = ranges(begins, counts)
        numbers = rows * buffer.slots
        numbers += np.repeat(slots, counts)
        taken = [
            column.reshape(-1, *column.shape[2:]).take(numbers, axis=0, out=room[: len(rows)], mode="clip")
            for column, room in zip(buffer.columns, self._taken_rows, strict=True)
        ]
        return [*taken, buffer.versions.take(rows)]

    def close(self) -> None:
        """Drops steps that are not written. May be called again."""
        for stream in {self._stream, *(playing.stream for playing in self._playing.values())}:
            stream.close()


class SlotRecorder:
    """Of one slot, whose recorder is that of all: what is asked of the recorder of an environment alone."""

    def __init__(self, recorder: BatchRecorder, slot: int) -> None:
        self._recorder, self._slot = recorder, slot

    def begin(self, *, episode: int, seed: int, retries: int = 0) -> None:
        self._recorder.begin(self._slot, episode=episode, seed=seed, retries=retries)

    def end(self, *, outcome: str, flush: bool) -> None:
        self._recorder.end(self._slot, outcome=outcome)
        if flush:
            self._recorder.flush()

    def flush(self) -> None:
        self._recorder.flush()
