"""Steps of episodes in numbers, from the loop that plays them to disk: `Columns` says what a step has, `StepRecorder` keeps it.

Rules:
1. A step costs the loop a handful of assignments into numpy columns made beforehand; Arrow is asked once for each episode,
   and once every `ROWS` steps of a long one, so memory stays flat.
2. All of an episode is in the kernel when `end` returns: it is reported after that.
3. The values are taken as they are: whoever calls has brought them into the form of their spaces (`spaces.conformer`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from governor.episodes.records.stream import Run, Stream, array
from governor.episodes.spaces import Box, Discrete, MultiBinary, MultiDiscrete, SpaceSpec
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

ROWS: Final = 4096
BYTES: Final = 8 << 20
"""Of one recorder's columns at most: where observations are large, a piece has fewer rows."""
RESERVED: Final = frozenset(
    {"phase", "worker", "episode", "attempt", "seed", "step", "weight_version", "outcome"}
)
"""Columns that every table of steps has, so that no player can be called like one."""
_WEIGHTS: Final = pa.field("weight_version", pa.int64(), nullable=False)


@dataclass(frozen=True, kw_only=True)
class Seat:
    """The spaces of one agent of an environment."""

    observation: SpaceSpec
    action: SpaceSpec

    @cached_property
    def fields(self) -> list[pa.Field]:
        return [
            _field("observation", self.observation),
            _field("action", self.action),
            pa.field("reward", pa.float64(), nullable=False),
            pa.field("terminated", pa.bool_(), nullable=False),
            pa.field("truncated", pa.bool_(), nullable=False),
        ]

    @cached_property
    def row_bytes(self) -> int:
        sides = (_storage(self.observation), _storage(self.action))
        return sum(dtype.itemsize * prod(shape) for dtype, shape in sides) + 10


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What each step has. `alone` is the seat of the one agent; else `players` has a seat for each name."""

    alone: Seat | None = None
    players: tuple[tuple[str, Seat], ...] = ()

    @classmethod
    def of(cls, observation: SpaceSpec, action: SpaceSpec) -> Columns:
        return cls(alone=Seat(observation=observation, action=action))

    @classmethod
    def of_players(cls, spaces: Mapping[str, tuple[SpaceSpec, SpaceSpec]]) -> Columns:
        """A struct for each player, null in the steps in which it did not act. Raises ConductorError."""
        for name in spaces:
            if name in RESERVED:
                raise ConductorError(
                    f"an agent cannot be called {name!r}: a column of the steps has that name"
                )
        return cls(
            players=tuple(
                (name, Seat(observation=seen, action=done)) for name, (seen, done) in spaces.items()
            )
        )

    @cached_property
    def schema(self) -> pa.Schema:
        if self.alone is not None:
            return pa.schema([*self.alone.fields, _WEIGHTS])
        return pa.schema([*(pa.field(name, pa.struct(seat.fields)) for name, seat in self.players), _WEIGHTS])

    @property
    def rows(self) -> int:
        """Steps in one piece."""
        seats = [seat for _, seat in self.players] if self.alone is None else [self.alone]
        return max(1, min(ROWS, BYTES // sum(seat.row_bytes for seat in seats)))


class StepRecorder:
    """The steps of one worker in one phase; for one thread. Episodes come one after the other.

    Steps that went to disk before a fault stay there, and those that did not are dropped: the next episode begins with
    empty columns.
    """

    def __init__(self, folder: Path, *, phase: str, worker: int, columns: Columns) -> None:
        """`folder` is the run's. Nothing is written before there is something to write."""
        self.columns = columns
        self._rows = columns.rows
        self._stream = Stream(folder, phase=phase, worker=worker, schema=columns.schema)
        self._players = [(name, _SeatColumns(seat, self._rows)) for name, seat in columns.players]
        alone = _SeatColumns(columns.alone, self._rows) if columns.alone is not None else None
        self._alone = alone
        if alone is not None:
            self._observation, self._action, self._reward = alone.observation, alone.action, alone.reward
            self._terminated, self._truncated = alone.terminated, alone.truncated
        self._weight_version: NDArray[np.int64] = np.zeros(self._rows, np.int64)
        self._row = 0
        self._first_row = 0
        self._first_step = 0
        self._runs: list[Run] = []
        self._episode = -1
        self._attempt = 0
        self._seed = 0
        self._playing = False
        self.lost: dict[int, OSError] = {}
        """Episodes whose steps have not all come to disk."""

    def begin(self, *, episode: int, seed: int) -> None:
        """The same episode once more is its next attempt: the last one counts."""
        if self._playing:
            raise RuntimeError(f"episode {self._episode} has not ended")
        self._attempt = self._attempt + 1 if episode == self._episode else 1
        self.lost.pop(episode, None)
        self._episode, self._seed = episode, seed
        self._first_row, self._first_step = self._row, 0
        self._playing = True

    def step(  # noqa: PLR0917  # names cost a tenth of the call
        self,
        observation: Any,
        action: Any,
        reward: float,
        terminated: bool,  # noqa: FBT001  # in the order of Gymnasium's five values
        truncated: bool,  # noqa: FBT001
        weight_version: int = 0,
    ) -> None:
        """`action`, taken at `observation`, brought the rest. Raises OSError when a piece of a long episode cannot be written."""
        row = self._row
        self._observation[row] = observation
        self._action[row] = action
        self._reward[row] = reward
        self._terminated[row] = terminated
        self._truncated[row] = truncated
        self._weight_version[row] = weight_version
        self._row = row + 1
        if self._row == self._rows:
            self.flush()

    def step_players(  # noqa: PLR0917  # as above
        self,
        observations: Mapping[str, Any],
        actions: Mapping[str, Any],
        rewards: Mapping[str, float],
        terminated: Mapping[str, bool],
        truncated: Mapping[str, bool],
        weight_version: int = 0,
    ) -> None:
        """As `step`, for an environment of several agents: those in `actions` took part."""
        row = self._row
        for name, seat in self._players:
            seat.absent[row] = name not in actions
            if name in actions:
                seat.observation[row] = observations[name]
                seat.action[row] = actions[name]
                seat.reward[row] = rewards[name]
                seat.terminated[row] = terminated[name]
                seat.truncated[row] = truncated[name]
        self._weight_version[row] = weight_version
        self._row = row + 1
        if self._row == self._rows:
            self.flush()

    def end(self, *, outcome: str, flush: bool = True) -> None:
        """Raises OSError. Without `flush` several short episodes become one write; they may be reported after `flush()`."""
        self._runs.append(self._run(outcome))
        self._playing = False
        if flush:
            self.flush()

    def flush(self) -> None:
        """All that was recorded is in the kernel. Raises OSError: what was not yet there is dropped."""
        rows = self._row
        runs = [*self._runs, self._run("")] if self._playing and rows > self._first_row else self._runs
        self._first_step += rows - self._first_row
        self._row = self._first_row = 0
        self._runs = []
        if runs:
            try:
                self._stream.append(self._batch(rows), runs)
            except OSError as error:
                self.lost.update((run.episode, error) for run in runs)
                raise

    def close(self) -> None:
        """What `end` has not kept is dropped. May be called again."""
        self._stream.close()

    def _run(self, outcome: str) -> Run:
        return Run(
            episode=self._episode,
            attempt=self._attempt,
            seed=self._seed,
            step=self._first_step,
            rows=self._row - self._first_row,
            outcome=outcome,
        )

    def _batch(self, rows: int) -> pa.RecordBatch:
        weights = array(self._weight_version[:rows])
        if self._alone is not None:
            arrays = self._alone.arrays(rows)
        else:
            arrays = [
                pa.StructArray.from_arrays(
                    seat.arrays(rows), fields=seat.fields, mask=array(seat.absent[:rows])
                )
                for _, seat in self._players
            ]
        return pa.RecordBatch.from_arrays([*arrays, weights], schema=self.columns.schema)


class _SeatColumns:
    def __init__(self, seat: Seat, rows: int) -> None:
        self.fields = seat.fields
        self.observation, self.action = _column(seat.observation, rows), _column(seat.action, rows)
        self.reward: NDArray[np.float64] = np.zeros(rows, np.float64)
        self.terminated: NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.truncated: NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.absent: NDArray[np.bool_] = np.zeros(rows, np.bool_)

    def arrays(self, rows: int) -> list[pa.Array]:
        columns = (self.observation, self.action, self.reward, self.terminated, self.truncated)
        return [_arrow(column, field.type, rows) for column, field in zip(columns, self.fields, strict=True)]


def _storage(spec: SpaceSpec) -> tuple[np.dtype[Any], tuple[int, ...]]:
    match spec:
        case Discrete():
            return np.dtype(np.int64), ()
        case Box() | MultiDiscrete():
            return np.dtype(spec.dtype), spec.shape
        case MultiBinary():
            return np.dtype(np.int8), spec.shape


def _field(name: str, spec: SpaceSpec) -> pa.Field:
    """The shape of a value stands in the field's metadata, as JSON: the column has it flat, in C order."""
    dtype, shape = _storage(spec)
    if isinstance(spec, Discrete):
        return pa.field(name, pa.int64(), nullable=False)
    # A list of the fixed size 0 ends the process when Arrow writes it to Parquet.
    kind = pa.list_(pa.field("item", pa.from_numpy_dtype(dtype), nullable=False), prod(shape) or -1)
    # Nullable, though it never is null: in a struct that is, Arrow could not read it back from Parquet.
    return pa.field(name, kind, metadata={"shape": msgspec.json.encode(shape)})


def _column(spec: SpaceSpec, rows: int) -> NDArray[Any]:
    dtype, shape = _storage(spec)
    return np.zeros((rows, *shape), dtype)


def _arrow(column: NDArray[Any], kind: pa.DataType, rows: int) -> pa.Array:
    if pa.types.is_list(kind):
        return pa.array([()] * rows, kind)
    if not pa.types.is_fixed_size_list(kind):
        return array(column[:rows])
    return pa.Array.from_buffers(kind, rows, [None], children=[array(column[:rows].reshape(-1))])
