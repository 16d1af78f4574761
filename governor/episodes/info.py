"""The scalars of `info` that the run file names: a row for each step, and the figures of an episode.

Rules:
1. `InfoReader` is where the environment is, and makes a row of each `info`; `InfoFigures` is where the episode is recorded, and
   folds its rows. Between them a row may cross a socket.
2. Of named keys a row has their values in that order, None where a key is missing or None. It is a tuple if it has all that the
   figures need of the rows before it, so that it may be set as `InfoFigures.row`; else a list. Of ``all`` it is a dict. A dotted
   key reaches into a dict: ``episode.r``.
3. A named key whose value is no number is the fault of the episode. ``all`` leaves such values out, and logs that once.
4. The `info` of `reset` is no row. It counts for figures of a key that no step has.
"""

from __future__ import annotations

from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np

from governor import logs
from governor.episodes.metrics import MOST, NONFINITE, drop, is_name, number, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Wanted: TypeAlias = "dict[str, str] | Literal['all']"
"""The reduction of each key over an episode, or ``all``: the last value of each."""
Row: TypeAlias = tuple[Any, ...] | list[Any] | dict[str, Any] | None
ALL: Final = "all"
RESERVED: Final = frozenset({"return", "steps", "seconds"})
"""Metrics of every episode: no key of `info` may have such a name."""
PLAIN: Final = frozenset({bool, int, float, np.bool_, np.float64, np.float32, np.int64, np.int32, np.uint8})
"""Types of numbers that cannot be changed: they are kept as they are until they are written."""

log = logs.get_logger()


def columns_of(wanted: Wanted, players: Sequence[str] = ()) -> tuple[str, ...] | Literal["all"]:
    """The names of the values of a row, or ``all``."""
    if isinstance(wanted, str):
        return ALL
    return tuple(f"{player}.{key}" for player in players for key in wanted) if players else tuple(wanted)


def reader_of(wanted: Wanted, players: Sequence[str] = ()) -> Callable[[Any], Row] | None:
    """What makes a row of an info, or raises ValueError, which names the key; None if nothing is wanted. With `players`, infos are by player, and so are the names: ``player.key``."""
    if not wanted:
        return None
    return PlayersInfo(wanted, players).read if players else InfoReader(wanted).read


class InfoReader:
    """Reads the `info` of one environment, or of one player."""

    def __init__(self, wanted: Wanted) -> None:
        self.read: Callable[[Any], Row] = self._read_all
        """The row of an `info`. Raises ValueError, which names the key."""
        self._names: set[str] = set()
        """Keys that ``all`` has found."""
        self._without: set[str] = set()
        if not isinstance(wanted, str):
            self._keys = tuple(wanted)
            self._is_folded = any(kind != "last" for kind in wanted.values())
            self.read = self._reader(self._keys)

    def _reader(self, keys: tuple[str, ...]) -> Callable[[Any], Row]:
        get: Callable[[Any], tuple[Any, ...]] = itemgetter(*keys)
        slowly, plain = self._read_slowly, PLAIN

        def read(info: Any) -> Row:
            try:
                values = get(info)
            except (LookupError, TypeError):
                return slowly(info)
            for value in values:
                if value.__class__ not in plain:
                    return slowly(info)
            return values

        return read if len(keys) > 1 and not self._is_folded else slowly

    def _read_slowly(self, info: Any) -> Row:
        if not isinstance(info, dict):
            raise ValueError(f"info is of type {type(info).__name__}, not a dict")  # noqa: TRY004  # as any fault of a step
        values: list[Any] = []
        for key in self._keys:
            value = info.get(key)
            if value is None and "." in key:
                value = _inside(info, key)
            if value is not None and type(value) not in PLAIN:
                value = self._number(key, value)
            values.append(value)
        return values if None in values or self._is_folded else tuple(values)

    @staticmethod
    def _number(key: str, value: Any) -> float:
        try:
            return number(value)
        except TypeError as error:
            hint = (
                f"; its keys are {', '.join(f'{key}.{name}' for name in list(value)[:5])}"
                if isinstance(value, dict)
                else ""
            )
            raise ValueError(f"info: {key!r} {error}{hint}") from None

    def _read_all(self, info: Any) -> Row:
        found: dict[str, Any] = {}
        if isinstance(info, dict):
            self._find(info, "", found)
        return found

    def _find(self, info: Mapping[Any, Any], before: str, found: dict[str, Any]) -> None:
        for key, value in info.items():
            name = f"{before}{key}"
            if value is None or name in self._without:
                continue
            if isinstance(value, dict) and not before:
                self._find(value, f"{name}.", found)
                continue
            try:
                plain = value if type(value) in PLAIN else number(value)
            except TypeError as error:
                self._leave_out(name, str(error))
                continue
            if name not in self._names and not self._is_new(name):
                continue
            found[name] = plain

    def _is_new(self, name: str) -> bool:
        """Whether it becomes a column."""
        if name in RESERVED or not is_name(name):
            self._leave_out(name, "cannot be the name of a metric")
            return False
        if len(self._names) >= MOST:
            drop(name)
            return False
        self._names.add(name)
        return True

    def _leave_out(self, name: str, reason: str) -> None:
        if len(self._without) < MOST:
            self._without.add(name)
            if name not in _left_out and len(_left_out) < MOST:
                _left_out.add(name)
                log.info("info.key_left_out", key=name[:64], reason=reason)


_left_out: set[str] = set()
"""In this process: each is logged once."""


class PlayersInfo:
    """Reads the infos of several players, by player."""

    def __init__(self, wanted: Wanted, players: Iterable[str]) -> None:
        self._readers = {player: InfoReader(wanted) for player in players}
        self._blank = None if isinstance(wanted, str) else [None] * len(wanted)

    def read(self, infos: Any) -> Row:
        """The values of all players, one player after the other."""
        if not isinstance(infos, dict):
            raise ValueError(f"infos are of type {type(infos).__name__}, not a dict")  # noqa: TRY004  # as any fault of a step
        rows = {
            player: reader.read(infos[player]) for player, reader in self._readers.items() if player in infos
        }
        if self._blank is None:
            return {
                f"{player}.{name}": value
                for player, row in rows.items()
                if isinstance(row, dict)
                for name, value in row.items()
            }
        return [value for player in self._readers for value in (rows.get(player) or self._blank)]


def as_sent(row: Row) -> Row:
    """The row with Python's numbers alone, for a message."""
    if row is None or isinstance(row, dict):
        return None if row is None else {name: number(value) for name, value in row.items()}
    return [None if value is None else number(value) for value in row]


class InfoFigures:
    """The figures of one episode, of its rows. `names` are those of the values of a row, or ``all``."""

    def __init__(self, wanted: Wanted, names: tuple[str, ...] | Literal["all"]) -> None:
        self._names = names
        self._last: dict[str, float] = {}
        self.row: Row = ()
        """The last one: a tuple may be set here instead of being added, at a third of the cost."""
        self._tallies: dict[int, _Tally] = {}
        if not isinstance(wanted, str) and names != ALL:
            kinds = list(wanted.values())
            self._tallies = {
                place: _Tally(kind)
                for place in range(len(names))
                if (kind := kinds[place % len(kinds)]) != "last"
            }

    def begin(self, row: Row) -> None:
        """With the row of `reset`."""
        for tally in self._tallies.values():
            tally.clear()
        self._last.clear()
        self.row = row

    def add(self, row: Row) -> None:
        """With the row of a step."""
        self._fold()
        self.row = row
        if not isinstance(row, dict) and row is not None:
            for place, tally in self._tallies.items():
                if row[place] is not None:
                    tally.add(number(row[place]))

    def _fold(self) -> None:
        row = self.row
        if not row:
            return
        pairs = row.items() if isinstance(row, dict) else zip(self._names, row, strict=True)
        self._last.update((name, value) for name, value in pairs if value is not None)

    def figures(self) -> dict[str, float]:
        """Of what was added until now."""
        self._fold()
        found: dict[str, float] = {}
        reduced = {self._names[place]: tally for place, tally in self._tallies.items()}
        for name, value in self._last.items():
            tally = reduced.get(name)
            if tally is None or not (tally.count or tally.others):
                put(found, name, number(value))
                continue
            if tally.count:
                put(found, name, tally.value)
            if tally.others:
                found[name + NONFINITE] = float(tally.others)
        return found


class _Tally:
    """One key over an episode: `kind` is mean, sum, min or max."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.clear()

    def clear(self) -> None:
        self.count = self.others = 0
        self.total = self.low = self.high = 0.0

    def add(self, value: float) -> None:
        if not isfinite(value):
            self.others += 1
            return
        self.low = min(self.low, value) if self.count else value
        self.high = max(self.high, value) if self.count else value
        self.count += 1
        self.total += value

    @property
    def value(self) -> float:
        of_kind = {"mean": self.total / self.count, "sum": self.total, "min": self.low, "max": self.high}
        return of_kind[self._kind]


def _inside(info: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, None if it is missing."""
    found: Any = info
    for name in key.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(name)
    return found
