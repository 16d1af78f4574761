"""Episodes and tasks as tables of the document, and the choice of episodes whose steps it has.

Rules:
1. A file of episodes is read once, from its first line to its last one, whatever the number of lines.
2. Up to `MOST_ROWS` all rows are there, in whichever phases. Of more: those that ended badly (a fifth of the room), the last ones, and others
   evenly spread.
"""

from __future__ import annotations

import json
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
import numpy as np

from governor.episodes.records import episode_file
from governor.messages import BAD, BAD_TASKS, TaskRecord
from governor.report.document import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Literal

    from governor.messages import PhaseResult

MOST_ROWS: Final = 10_000
LAST_ROWS: Final = 200
REASON_LENGTH: Final = 300
VALUE_LENGTH: Final = 200

T = TypeVar("T")


class EpisodeLine(msgspec.Struct, gc=False):
    """As `EpisodeRecord`, as it is in the file: a number that is not finite is null there."""

    index: int
    outcome: str
    value: float | None = None
    steps: int = 0
    seconds: float | None = None
    worker: int = 0
    seed: int = 0
    reason: str = ""
    evaluation: int = 0
    metrics: dict[str, float | None] = {}


class Choice(msgspec.Struct, frozen=True):
    """An episode whose steps are shown, and `why`."""

    line: EpisodeLine
    why: str


class _Thinned(Generic[T]):
    """At most `most` of the items that come, in their order: the bad ones first of all, the last ones, and others evenly spread."""

    def __init__(self, most: int, is_bad: Callable[[T], bool]) -> None:
        self.total = 0
        self.bad = 0
        self._is_bad = is_bad
        self._most = most
        self._bad: list[tuple[int, T]] = []
        self._last: deque[tuple[int, T]] = deque(maxlen=min(LAST_ROWS, most))
        self._every: list[tuple[int, T]] = []
        self._stride = 1

    def add(self, item: T) -> None:
        numbered = (self.total, item)
        self.total += 1
        if self._is_bad(item):
            self.bad += 1
            if len(self._bad) < self._most // 5:
                self._bad.append(numbered)
        self._last.append(numbered)
        if numbered[0] % self._stride == 0:
            self._every.append(numbered)
            if len(self._every) > self._most:
                self._every = self._every[::2]
                self._stride *= 2

    def kept(self) -> list[T]:
        if self._stride == 1:
            return [item for _, item in self._every]
        room = self._most - len(self._bad) - len(self._last)
        step = -(-len(self._every) // max(room, 1))
        chosen = dict([*self._every[::step], *self._bad, *self._last])
        return [chosen[number] for number in sorted(chosen)]


class PhaseEpisodes:
    """The episodes of one phase: the rows that are shown, and the choice of those with steps."""

    def __init__(self, phase: str, most: int) -> None:
        self.phase = phase
        self._rows: _Thinned[EpisodeLine] = _Thinned(most, lambda line: line.outcome in BAD)
        self._values = array("d")
        self._first_bad: EpisodeLine | None = None
        self._best: EpisodeLine | None = None
        self._worst: EpisodeLine | None = None
        self._last: EpisodeLine | None = None
        self.asked: dict[int, EpisodeLine] = {}

    @property
    def total(self) -> int:
        return self._rows.total

    @property
    def bad(self) -> int:
        return self._rows.bad

    @property
    def rows(self) -> list[EpisodeLine]:
        return self._rows.kept()

    def read(self, run_folder: Path, asked: frozenset[int] = frozenset()) -> PhaseEpisodes:
        """Blocks. Raises OSError. A line that is being written is left out."""
        decode = msgspec.json.Decoder(EpisodeLine).decode
        path = episode_file.path_of(run_folder, self.phase)
        if not path.exists():
            return self
        with path.open("rb") as file:
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                try:
                    line = decode(raw)
                except msgspec.MsgspecError:
                    continue  # damaged: `results` says what the record has
                self._take(line)
                if line.index in asked:
                    self.asked[line.index] = line
        return self

    def _take(self, line: EpisodeLine) -> None:
        self._rows.add(line)
        self._last = line
        if line.outcome in BAD:
            self._first_bad = self._first_bad or line
            return
        value = line.value
        if value is None:
            return
        self._values.append(value)
        if self._best is None or value > (self._best.value or 0.0):
            self._best = line
        if self._worst is None or value < (self._worst.value or 0.0):
            self._worst = line

    def chosen(self) -> list[Choice]:
        """Each episode once, by its first reason. Where not all rows are kept, the median is the kept one that is nearest to it."""
        middle = None
        if len(self._values):
            values = np.frombuffer(self._values)
            median = np.partition(values, len(values) // 2)[len(values) // 2]
            near = [
                (abs(line.value - median), place, line)
                for place, line in enumerate(self.rows)
                if line.value is not None and line.outcome not in BAD
            ]
            middle = min(near)[2] if near else None
        wanted = [
            *((line, "asked") for line in self.asked.values()),
            (self._first_bad, "failed"),
            (self._best, "best"),
            (self._worst, "worst"),
            (middle, "median"),
            (self._last, "last"),
        ]
        found: dict[int, Choice] = {}
        for line, why in wanted:
            if line is not None:
                found.setdefault(line.index, Choice(line, why))
        return [*found.values()]


def room_of_a_phase(counts: Sequence[int]) -> int:
    """How many rows each phase may have, so that all phases have `MOST_ROWS` at most: those with few leave their room to the others."""
    left = MOST_ROWS
    for place, count in enumerate(ordered := sorted(counts)):
        share = left // (len(ordered) - place)
        if count > share:
            return max(share, 1)
        left -= count
    return MOST_ROWS


def episode_table(phases: Sequence[PhaseEpisodes], uid: str) -> Table:
    """`total` is how many lines there are."""
    rows = [(phase.phase, line) for phase in phases for line in phase.rows]
    total = sum(phase.total for phase in phases)
    if not rows:
        return Table(total=total)
    lines = [line for _, line in rows]
    names = sorted({name for line in lines for name in line.metrics})
    columns = [
        _texts("phase", [phase for phase, _ in rows]),
        _numbers("episode", [line.index for line in lines], unit="id"),
        _texts("outcome", [line.outcome for line in lines], kind="outcome"),
        _numbers("return", [line.value for line in lines]),
        _numbers("steps", [line.steps for line in lines]),
        _numbers("seconds", [line.seconds for line in lines], unit="s"),
        _numbers("worker", [line.worker for line in lines], unit="id"),
        _numbers("seed", [line.seed for line in lines], unit="id"),
        *(_numbers(name, [line.metrics.get(name) for line in lines]) for name in names),
    ]
    if any(line.evaluation for line in lines):
        columns.insert(2, _numbers("evaluation", [line.evaluation or None for line in lines], unit="id"))
    if any(line.reason for line in lines):
        columns.append(_texts("reason", [line.reason[:REASON_LENGTH] for line in lines]))
    return Table(
        columns=columns,
        total=total,
        shown=len(rows),
        note=_note(
            "episodes",
            uid,
            total=total,
            shown=len(rows),
            bad=sum(phase.bad for phase in phases),
            shown_bad=_shown_bad(columns, BAD),
        ),
    )


def task_table(phases: Iterable[PhaseResult], run_folder: Path, uid: str) -> Table:
    """Of the result; where they are in a file, that is read. Blocks. Raises OSError."""
    thinned: _Thinned[tuple[str, TaskRecord]] = _Thinned(MOST_ROWS, lambda row: row[1].outcome in BAD_TASKS)
    for phase in phases:
        for record in _tasks_of(phase, run_folder):
            thinned.add((phase.name, record))
    rows = thinned.kept()
    if not rows:
        return Table()
    records = [record for _, record in rows]
    names = sorted({name for record in records for name in record.metrics})
    columns = [
        _texts("phase", [phase for phase, _ in rows]),
        _texts("task", [record.task for record in records]),
        _numbers("run", [record.run for record in records], unit="id"),
        _texts("outcome", [record.outcome for record in records], kind="outcome"),
        _numbers("attempts", [record.attempts for record in records]),
        _numbers("seconds", [record.seconds for record in records], unit="s"),
        *(_numbers(name, [record.metrics.get(name) for record in records]) for name in names),
        _texts("value", [_value(record) for record in records]),
    ]
    if any(record.error or record.cause for record in records):
        columns.append(
            _texts("error", [(record.error or record.cause or "")[:REASON_LENGTH] for record in records])
        )
    return Table(
        columns=columns,
        total=thinned.total,
        shown=len(rows),
        note=_note(
            "tasks",
            uid,
            total=thinned.total,
            shown=len(rows),
            bad=thinned.bad,
            shown_bad=_shown_bad(columns, BAD_TASKS),
        ),
    )


def _tasks_of(phase: PhaseResult, run_folder: Path) -> Iterator[TaskRecord]:
    yield from phase.tasks
    if phase.tasks_file is not None:
        with (run_folder / phase.tasks_file).open("rb") as file:
            for line in file:
                yield msgspec.convert(json.loads(line), TaskRecord)


def _value(record: TaskRecord) -> str:
    if record.value is None or record.value == record.metrics:
        return record.value_file or ""
    text = record.value if isinstance(record.value, str) else msgspec.json.encode(record.value).decode()
    return text[:VALUE_LENGTH]


def _shown_bad(columns: Iterable[Column], bad: frozenset[Any]) -> int:
    [outcomes] = [column for column in columns if column.kind == "outcome"]
    texts = outcomes.dictionary
    return sum((texts[value] if texts else value) in bad for value in outcomes.values)


def _note(what: str, uid: str, *, total: int, shown: int, bad: int, shown_bad: int) -> str:
    if shown == total:
        return ""
    those = "those" if shown_bad == bad else f"{shown_bad:,} of the {bad:,}"
    return (
        f"{shown:,} of {total:,} {what}: {those} that ended badly, the last ones, and others evenly spread. "
        f"All of them: governor results {uid} --of {what} --format csv"
    )


def _numbers(name: str, values: list[Any], *, unit: str = "") -> Column:
    return Column(name=name, kind="number", unit=unit, values=values)


def _texts(name: str, values: list[str], *, kind: Literal["text", "outcome"] = "text") -> Column:
    """With a dictionary where texts repeat."""
    places = {value: place for place, value in enumerate(dict.fromkeys(values))}
    if len(places) > len(values) // 2:
        return Column(name=name, kind=kind, values=values)
    return Column(name=name, kind=kind, values=[places[value] for value in values], dictionary=[*places])
