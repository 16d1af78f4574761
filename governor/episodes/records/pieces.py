"""Where the rows of each attempt at an episode lie, taken in the order of the episodes, in bounded memory.

Rules:
1. Memory holds about `MOST` pieces. Beyond them they are sorted into runs in a file without a name, which goes with this
   process, and the runs are merged a block at a time (an external merge sort).
2. A block holds whole episodes. Pieces of an episode that was taken already are dropped: it had ended, so they are those
   of a runner that was given up.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MOST: Final = 1 << 15
BLOCK: Final = 1 << 13
"""Pieces that are taken at a time, with the rest of their last episode."""
LEAST_HEAD: Final = 512
"""Pieces of a run in memory, however many runs there are."""
PIECE: Final = np.dtype(
    [
        ("episode", "i8"), ("incarnation", "i4"), ("attempt", "i4"), ("seed", "i8"), ("step", "i8"), ("worker", "i4"),
        ("source", "i4"), ("offset", "i8"), ("row", "i4"), ("rows", "i4"), ("end", "i4"),
    ]
)  # fmt: skip
"""Rows of one attempt at an episode: their location, and in `end` how it ended, as a number of the reader's list."""
_WITHIN: Final = ("row", "offset", "source", "step", "attempt", "incarnation")
"""The order of the pieces of an episode, the last key first."""


class Pieces:
    """`keys` identify an episode, `episode` the last of them, by which pieces are ordered. `folder` has room for the file."""

    def __init__(self, folder: Path, *, keys: tuple[str, ...] = ("episode",)) -> None:
        self._folder = folder
        self._keys = keys
        self._held: list[NDArray[np.void]] = []
        self._count = 0
        self._runs: list[_Run] = []
        self._file: Any = None
        self._written = 0
        self._taken_below = 0

    def add(self, pieces: NDArray[np.void]) -> None:
        """In any order. Raises OSError."""
        if self._taken_below:
            pieces = pieces[pieces["episode"] >= self._taken_below]
        self._held.append(pieces)
        self._count += len(pieces)
        if self._count >= MOST:
            self._spill()

    def take(self, below: int | None = None) -> Iterator[NDArray[np.void]]:
        """Takes the pieces of all episodes `below` this one, or of all, in order. Raises OSError."""
        self._runs.append(_Run(self._sorted_held()))
        self._taken_below = max(self._taken_below, below or 0)
        while True:
            self._refill()
            edges = [run.edge for run in self._runs if run.left]
            limit = min([*edges, *([] if below is None else [below])], default=None)
            parts = [
                run.cut(limit) for run in self._runs if len(run.head) and (limit is None or run.first < limit)
            ]
            if parts:
                yield from _blocks(parts[0] if len(parts) == 1 else self._sorted(np.concatenate(parts)))
            elif limit is None or limit == below:
                break
            else:  # runs that begin here, and one whose head is shorter than an episode
                for run in self._runs:
                    if run.left and run.edge == limit:
                        self._read(run, LEAST_HEAD)
        self._held = [run.head for run in self._runs if not run.left]
        self._count = sum(map(len, self._held))
        self._runs = [run for run in self._runs if run.left]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def last_attempts(self, block: NDArray[np.void]) -> NDArray[np.void]:
        """Of pieces in order those with rows of the last attempt at each episode, with its end."""
        keys = [block[key] for key in self._keys]
        starts = np.flatnonzero(np.r_[True, np.any([key[1:] != key[:-1] for key in keys], axis=0)])
        counts = np.diff(np.r_[starts, len(block)])
        last = np.repeat(block[starts + counts - 1], counts)
        is_last = (block["incarnation"] == last["incarnation"]) & (block["attempt"] == last["attempt"])
        counted = is_last & (block["rows"] > 0)
        found: NDArray[np.void] = block[counted]
        found["end"] = last["end"][counted]
        return found

    def _sorted(self, pieces: NDArray[np.void]) -> NDArray[np.void]:
        ordered: NDArray[np.void] = pieces[np.lexsort([pieces[key] for key in (*_WITHIN, *self._keys)])]
        return ordered

    def _sorted_held(self) -> NDArray[np.void]:
        held, self._held, self._count = self._held, [], 0
        return self._sorted(np.concatenate([np.empty(0, PIECE), *held]))

    def _spill(self) -> None:
        pieces = self._sorted_held()
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115  # closed by `close`
        left = memoryview(pieces.tobytes())
        while left:
            left = left[self._file.write(left) :]
        first = int(pieces["episode"][0])
        self._runs.append(_Run(np.empty(0, PIECE), at=self._written, left=len(pieces), edge=first))
        self._written += pieces.nbytes

    def _refill(self) -> None:
        """Reads more of the runs that were begun, and drops those that are over."""
        begun = [run for run in self._runs if run.begun]
        size = MOST // max(len(begun), 1)
        for run in begun:
            if len(run.head) <= size // 4:
                self._read(run, max(size // 2, LEAST_HEAD))
        self._runs = [run for run in self._runs if run.left or len(run.head)]

    def _read(self, run: _Run, count: int) -> None:
        count = min(count, run.left)
        if count:
            data = os.pread(self._file.fileno(), count * PIECE.itemsize, run.at)
            run.at += len(data)
            run.left -= count
            run.begun = True
            run.put(np.concatenate([run.head, np.frombuffer(data, PIECE)]))


class _Run:
    """Sorted pieces: `head` in memory, from the episode `first` to `edge`; `left` more in the file, from `at`. One that was not
    `begun` has no head, and its edge is the first episode.
    """

    def __init__(self, head: NDArray[np.void], *, at: int = 0, left: int = 0, edge: int = -1) -> None:
        self.first = self.edge = edge
        self.at = at
        self.left = left
        self.begun = False
        self.put(head)

    def put(self, head: NDArray[np.void]) -> None:
        self.head = head
        if len(head):
            self.first, self.edge = int(head["episode"][0]), int(head["episode"][-1])

    def cut(self, limit: int | None) -> NDArray[np.void]:
        """Takes the pieces of the episodes before `limit`."""
        count = len(self.head) if limit is None else int(np.searchsorted(self.head["episode"], limit))
        taken = self.head[:count]
        self.put(self.head[count:])
        return taken


def _blocks(pieces: NDArray[np.void]) -> Iterator[NDArray[np.void]]:
    """Sorted pieces in parts of about `BLOCK`, with whole episodes each."""
    begin = 0
    while begin < len(pieces):
        end = min(begin + BLOCK, len(pieces))
        last = pieces["episode"][end - 1]
        end += int(np.searchsorted(pieces["episode"][end:], last, "right"))
        yield pieces[begin:end]
        begin = end


class Cut:
    """Cuts pieces, as they come, into parts of so many `rows`."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._pending = np.empty(0, PIECE)

    def add(self, pieces: NDArray[np.void]) -> Iterator[NDArray[np.void]]:
        pieces = np.concatenate([self._pending, pieces])
        ends = np.cumsum(pieces["rows"])
        total = int(ends[-1]) if len(ends) else 0
        whole = total - total % self._rows
        self._pending = _between(pieces, ends, whole, total)
        for first in range(0, whole, self._rows):
            yield _between(pieces, ends, first, first + self._rows)

    def rest(self) -> Iterator[NDArray[np.void]]:
        if len(self._pending):
            yield self._pending
        self._pending = self._pending[:0]


def _between(pieces: NDArray[np.void], ends: NDArray[np.int64], first: int, last: int) -> NDArray[np.void]:
    """The rows from `first` to before `last`, counted from the first piece; `ends` of the pieces likewise."""
    begin, end = np.searchsorted(ends, first, "right"), np.searchsorted(ends, last) + 1
    part: NDArray[np.void] = pieces[begin:end].copy()
    if first == last:
        return part[:0]
    skipped = first - (ends[begin] - part["rows"][0])
    part["rows"][-1] -= ends[end - 1] - last
    part["rows"][0] -= skipped
    part["row"][0] += skipped
    part["step"][0] += skipped
    return part


def ranges(begins: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.int64]:
    """The numbers of all ranges of so many that begin there, one range behind the other."""
    before = np.cumsum(counts) - counts
    numbers: NDArray[np.int64] = np.repeat(begins - before, counts) + np.arange(int(counts.sum()))
    return numbers
