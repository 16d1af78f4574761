"""Steps of episodes in numbers, from the loop that plays them to disk: `Columns` defines a step, `StepRecorder` stores steps.

Rules:
1. A step costs the loop its values in a list, with encodings: later changes of arrays are not recorded. All steps share one list
   without an object for each, so the garbage collector has nothing to look at, and a column is a slice of it. Arrow makes columns of them
   (`space_columns`) once for each episode, and once every `ROWS` steps of a long one, so memory stays flat.
2. All of an episode is written to the kernel when `end` returns: it is reported after that.
3. Values are not checked: the caller has brought them into the form of their spaces (`spaces.observer`).
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

from governor.episodes.info import columns_of
from governor.episodes.records import info_columns, step_columns
from governor.episodes.records.info_columns import ANY_INFO
from governor.episodes.records.space_columns import SpaceColumn, column, field
from governor.episodes.records.stream import Stream, StreamedRun, array, lasts_known
from governor.episodes.spaces import SpaceSpec, is_array
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from governor.episodes.info import Wanted

ROWS: Final = 4096
BYTES: Final = 8 << 20
"""The most bytes of one recorder's pending steps: with large observations, a batch has fewer rows."""
FIRST_ROWS: Final = 64
"""Of steps with texts or lists: their size is not known before."""
RESERVED: Final = frozenset(
    {"phase", "worker", "episode", "attempt", "seed", "step", "weight_version", "outcome", ANY_INFO}
)
"""Columns of every table of steps; no player may have such a name."""
OF_ACTION: Final = (0, 1, 5)
"""Places in a player's row: what it has only where it acted."""


@dataclass(frozen=True, kw_only=True)
class RecordingSlot:
    """The spaces of one agent of an environment. `turns`: it takes part in steps in which it does not act, so observation,
    action and version may be null.
    """

    observation: SpaceSpec
    action: SpaceSpec
    turns: bool = False

    @cached_property
    def fields(self) -> list[pa.Field]:
        fields = [
            *map(field, ("observation", "action"), self.columns),
            pa.field("reward", pa.float64(), nullable=False),
            pa.field("terminated", pa.bool_(), nullable=False),
            pa.field("truncated", pa.bool_(), nullable=False),
            pa.field("weight_version", pa.int64(), nullable=False),
        ]
        return [
            one.with_nullable(True) if self.turns and place in OF_ACTION else one
            for place, one in enumerate(fields)
        ]

    @cached_property
    def columns(self) -> tuple[SpaceColumn, SpaceColumn]:
        """Of observations and actions."""
        return column(self.observation), column(self.action)

    @cached_property
    def row_bytes(self) -> int:
        return sum(side.row_bytes for side in self.columns) + 18

    def arrays(self, columns: Sequence[Sequence[Any]]) -> list[pa.Array]:
        observed, acted = self.columns
        observations, actions, rewards, terminated, truncated, versions = columns
        return [
            observed.arrow(observations),
            acted.arrow(actions),
            array(np.fromiter(rewards, np.float64, len(rewards))),
            array(np.frombuffer(bytes(terminated), np.bool_)),
            array(np.frombuffer(bytes(truncated), np.bool_)),
            array(np.fromiter(versions, np.int64, len(rewards))),
        ]

    def struct(self, rows: Sequence[tuple[Any, ...] | None]) -> pa.Array:
        """None is the row of a player that took no part; with `turns`, one that did not act has None as observation, action and
        version.
        """
        absent = np.fromiter((row is None for row in rows), np.bool_, len(rows))
        observed, acted = self.columns
        blank = (observed.blank, acted.blank, 0.0, False, False, 0)
        full = [row or blank for row in rows]
        if not self.turns:
            values = self.arrays(_columns(full, len(blank)))
            return pa.StructArray.from_arrays(values, fields=self.fields, mask=array(absent))
        idle = np.fromiter((row is None or row[0] is None for row in rows), np.bool_, len(rows))
        filled = [(blank[0], blank[1], *row[2:5], 0) if row[0] is None else row for row in full]
        values = self.arrays(_columns(filled, len(blank)))
        of_action = pa.StructArray.from_arrays(
            [values[place] for place in OF_ACTION],
            fields=[self.fields[place] for place in OF_ACTION],
            mask=array(idle),
        )
        for place, nullable in zip(OF_ACTION, of_action.flatten(), strict=True):
            values[place] = nullable
        return pa.StructArray.from_arrays(values, fields=self.fields, mask=array(absent))


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a step. `alone` is the slot of a single agent; else `players` has a slot for each name. `info`: the names of
    the values of its info, or ``all``; a row with any has them as its last item.
    """

    alone: RecordingSlot | None = None
    players: tuple[tuple[str, RecordingSlot], ...] = ()
    info: tuple[str, ...] | Literal["all"] = ()

    @classmethod
    def of(cls, observation: SpaceSpec, action: SpaceSpec, wanted: Wanted | None = None) -> Columns:
        """`wanted` of infos, as of `StartSimulation`; likewise below."""
        alone = RecordingSlot(observation=observation, action=action)
        return cls(alone=alone, info=columns_of(wanted or {}))

    @classmethod
    def of_players(
        cls,
        spaces: Mapping[str, tuple[SpaceSpec, SpaceSpec]],
        wanted: Wanted | None = None,
        *,
        turns: bool = False,
    ) -> Columns:
        """A struct for each player, null in the steps in which it took no part; `turns` as of `RecordingSlot`. Raises ConductorError."""
        for name in spaces:
            if name in RESERVED:
                raise ConductorError(
                    f"an agent cannot be called {name!r}: a column of the steps has that name"
                )
        return cls(
            players=tuple(
                (name, RecordingSlot(observation=observation, action=action, turns=turns))
                for name, (observation, action) in spaces.items()
            ),
            info=columns_of(wanted or {}, [*spaces]),
        )

    @cached_property
    def schema(self) -> pa.Schema:
        """As it is streamed."""
        fields = [pa.field(name, pa.struct(slot.fields)) for name, slot in self.players]
        return pa.schema(
            [*(fields if self.alone is None else self.alone.fields), *info_columns.fields(self.info)]
        )

    @cached_property
    def varies(self) -> bool:
        """Whether steps differ in their size."""
        return step_columns.varies(info_columns.without_info(self.schema))

    @cached_property
    def row_bytes(self) -> int:
        """Of a step, without its texts and lists."""
        slots = [slot for _, slot in self.players] if self.alone is None else [self.alone]
        return sum(slot.row_bytes for slot in slots)

    @property
    def rows(self) -> int:
        """Steps in the first batch, and in all if they have one size."""
        most = _rows_of(self.row_bytes)
        return min(most, FIRST_ROWS) if self.varies else most

    @cached_property
    def width(self) -> int:
        """Values of a step, the row of its info among them."""
        return (6 if self.alone is not None else len(self.players)) + bool(self.info)

    def batch(self, values: list[Any]) -> tuple[pa.RecordBatch, dict[bytes, bytes]]:
        """The batch of the steps with these values, one step after the other, and what is to be known of it."""
        columns = [values[place :: self.width] for place in range(self.width)]
        if self.alone is not None:
            arrays = self.alone.arrays(columns[:6])
        else:
            pairs = zip(self.players, columns, strict=False)  # a last one is of `info`
            arrays = [slot.struct(rows) for (_, slot), rows in pairs]
        known: dict[bytes, bytes] = {}
        if self.info:
            numbers, known = info_columns.arrays(columns[-1], self.info)
            arrays += numbers
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema), known

    def batch_of_arrays(self, columns: Sequence[NDArray[Any]]) -> pa.RecordBatch:
        """The batch of steps of one agent whose observations and actions are arrays or Discrete, from an array for each column."""
        if self.alone is None:
            raise ValueError("the columns are those of several players")
        observed, acted = self.alone.columns
        observations, actions, *others = columns
        arrays = [observed.of_array(observations), acted.of_array(actions), *map(array, others)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _rows_of(size: float) -> int:
    """How many rows of this size a batch has."""
    return max(1, min(ROWS, int(BYTES / size)))


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> Sequence[Sequence[Any]]:
    return [*zip(*rows, strict=True)] if rows else [()] * width


class StepRecorder:
    """The steps of one worker in one phase, one episode after the other. For one thread; `end` and `flush` also for the watch,
    which may have declared that thread hung.

    Steps that were written before a fault stay on disk, the others are dropped: the next episode begins with empty columns.
    """

    def __init__(self, folder: Path, *, phase: str, worker: int, columns: Columns) -> None:
        """`folder` is the run's. The file is made with the first write."""
        self.columns = columns
        self._make_stream = partial(Stream, folder, phase=phase, worker=worker, schema=columns.schema)
        self._stream = self._make_stream()
        alone = columns.alone
        self._array_observation = alone is not None and is_array(alone.observation)
        self._array_action = alone is not None and is_array(alone.action)
        self.keeps_last = False
        """Whether `last` is recorded: the encoding of the observation that the last step of the episode led to (`restoring`)."""
        self.last: Any = None
        self.steps: list[Any] = []
        """Steps that wait for `flush`, which is due at `most` of them, each with the values of `columns.width`, one after the other: a
        fast loop adds them here instead of calling `step`.
        """
        self._width = columns.width
        self.most = columns.rows
        self._lock = threading.RLock()
        self._flushed = 0
        self._first_row = 0
        self._first_step = 0
        self._runs: list[StreamedRun] = []
        self._lasts: list[Any] = []
        """For each run, where it has one."""
        self._episode = -1
        self._attempt = 0
        self._seed = self._retries = 0
        self._playing = False
        self.lost: dict[int, OSError] = {}
        """Episodes whose steps are not all on disk."""

    @property
    def taken(self) -> int:
        """Steps so far; for any thread."""
        return self._flushed + self._pending

    @property
    def _pending(self) -> int:
        return len(self.steps) // self._width

    def begin(self, *, episode: int, seed: int, retries: int = 0) -> None:
        """Beginning the same episode again is its next attempt: the last attempt counts. `retries`: so many attempts at it have failed,
        the last one perhaps with another recorder, whose stream has to be older then.
        """
        if self._playing:
            raise RuntimeError(f"episode {self._episode} has not ended")
        if retries and (episode != self._episode or retries > self._retries + 1):
            self._renew_stream()
        self._retries = retries
        with self._lock:
            self._attempt = self._attempt + 1 if episode == self._episode else 1
            self.lost.pop(episode, None)
            self._episode, self._seed = episode, seed
            self._first_row, self._first_step = self._pending, 0
            self._playing = True

    def step(  # noqa: PLR0917  # names cost a tenth of the call
        self,
        observation: Any,
        action: Any,
        reward: float,
        terminated: bool,  # noqa: FBT001  # in the order of Gymnasium's five values
        truncated: bool,  # noqa: FBT001
        weight_version: int = 0,
        info: Any = None,
    ) -> None:
        """Records a step: `action`, an array of its space's dtype and shape or the encoding of another value, taken at `observation`,
        which is given likewise, and their result. `reward` is undiscounted. `info` is a row as of `episodes.info`. Raises OSError if a batch of a long episode cannot be written.
        """
        row = (
            observation.tobytes() if self._array_observation else observation,
            action.tobytes() if self._array_action else action,
            reward,
            terminated,
            truncated,
            weight_version,
        )
        self._add(row, info)

    def note_last(self, observation: Any) -> None:
        """`last`, of an observation as `step` takes it."""
        self.last = observation.tobytes() if self._array_observation else observation

    def step_players(self, rows: Mapping[str, tuple[Any, ...]], info: Any = None) -> None:
        """As `step`, for an environment of several agents: the row of each that took part, with encodings."""
        self._add(tuple(rows.get(name) for name, _ in self.columns.players), info)

    def _add(self, values: tuple[Any, ...], info: Any) -> None:
        self.steps += (*values, info) if self.columns.info else values
        if self._pending >= self.most:
            self.flush()

    def end(self, *, outcome: str, flush: bool = True) -> None:
        """Raises OSError. Without `flush` several short episodes become one write; they may be reported after `flush()`."""
        with self._lock:
            if self._playing:  # else the watch has declared it hung
                self._runs.append(self._run(outcome, self._pending))
                self._lasts.append(self.last if self.keeps_last else None)
                self._playing = False
            self.last = None
            if flush:
                self.flush()

    def flush(self) -> None:
        """Writes all recorded steps to the kernel. Raises OSError: steps that were not written are dropped."""
        with self._lock:
            rows = self._pending
            steps = self.steps[: rows * self._width]  # no more, should their loop add one now
            del self.steps[: rows * self._width]
            self._flushed += rows
            runs, self._runs = self._runs, []
            lasts, self._lasts = self._lasts, []
            if self._playing and rows > self._first_row:
                runs.append(self._run("", rows))
            self._first_step += rows - self._first_row
            self._first_row = 0
            if runs:
                try:
                    batch, known = self.columns.batch(steps)
                    known |= lasts_known(lasts)
                    if rows and self.columns.varies:
                        self.most = _rows_of(batch.nbytes / rows)
                    self._stream.append(batch, runs, known)
                except OSError as error:
                    self.lost.update((run.episode, error) for run in runs)
                    raise

    def _renew_stream(self) -> None:
        with contextlib.suppress(OSError):  # in `lost`
            self.flush()
        with self._lock:
            self._stream.close()
            self._stream = self._make_stream()

    def close(self) -> None:
        """Drops steps that are not flushed. May be called again."""
        self._stream.close()

    def _run(self, outcome: str, rows: int) -> StreamedRun:
        return StreamedRun(
            episode=self._episode,
            attempt=self._attempt,
            seed=self._seed,
            step=self._first_step,
            rows=rows - self._first_row,
            outcome=outcome,
        )
