"""The scalars of `info` that the run file names: a row for each step, and the figures of an episode.

Rules:
1. `InfoReader` is where the environment is, and makes a row of each `info`; `InfoFigures` is where the episode is recorded, and
   folds its rows. Between them a row may cross a socket.
2. Of named keys a row has their values in that order. It is bytes (`packing`) if none is missing and all are reduced to the last
   one: such a row needs no other, and may be set as `InfoFigures.row`. Else it is a list, with None where a key is missing or None.
   Of ``all`` it is a dict. A dotted key reaches into a dict: ``episode.r``.
3. A named key whose value is no number is the fault of the episode. ``all`` leaves such values out, and logs that once.
4. The `info` of `reset` is no row. It counts for figures of a key that no step has.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from governor import logs
from governor.episodes.metrics import MOST, NONFINITE, NOT_A_NAME, drop, is_name, number, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Wanted: TypeAlias = "dict[str, str] | Literal['all']"
"""The reduction of each key over an episode, or ``all``: the last value of each."""
Row: TypeAlias = bytes | list[float | None] | dict[str, float] | None
ALL: Final = "all"
RESERVED: Final = frozenset({"return", "steps", "seconds"})
"""Metrics of every episode: no key of `info` may have such a name."""
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


@lru_cache
def packing(count: int) -> struct.Struct:
    """Of so many numbers, as float64 in the byte order of this machine."""
    return struct.Struct(f"={count}d")


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
        get: Callable[[Any], Any] = itemgetter(*keys)
        slowly, pack = self._read_slowly, packing(len(keys)).pack

        def read(info: Any) -> Row:
            try:
                return pack(*get(info))
            except (LookupError, TypeError, struct.error, OverflowError):
                return slowly(info)

        def read_one(info: Any) -> Row:
            try:
                return pack(get(info))
            except (LookupError, TypeError, struct.error, OverflowError):
                return slowly(info)

        if self._is_folded:
            return slowly
        return read if len(keys) > 1 else read_one

    def _read_slowly(self, info: Any) -> Row:
        if not isinstance(info, dict):
            raise ValueError(f"info is of type {type(info).__name__}, not a dict")  # noqa: TRY004  # as any fault of a step
        values: list[Any] = []
        for key in self._keys:
            value = info.get(key)
            if value is None and "." in key:
                value = _inside(info, key)
            values.append(None if value is None else self._number(key, value))
        return values if None in values or self._is_folded else packing(len(values)).pack(*values)

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
                plain = number(value)
            except TypeError as error:
                self._leave_out(name, str(error))
                continue
            if name not in self._names and not self._is_new(name):
                continue
            found[name] = plain

    def _is_new(self, name: str) -> bool:
        """Whether it becomes a column."""
        if name in RESERVED or not is_name(name):
            self._leave_out(name, "is a metric of every episode" if name in RESERVED else NOT_A_NAME)
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
        self._blank: list[None] | None = None if isinstance(wanted, str) else [None] * len(wanted)

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
        width, found = len(self._blank), list[float | None]()
        for player in self._readers:
            row = rows.get(player)
            values = packing(width).unpack(row) if isinstance(row, bytes) else row
            found += values if isinstance(values, list | tuple) else self._blank
        return found


class InfoFigures:
    """The figures of one episode, of its rows. `names` are those of the values of a row, or ``all``."""

    def __init__(self, wanted: Wanted, names: tuple[str, ...] | Literal["all"]) -> None:
        self._names = names
        self._last: dict[str, float] = {}
        self.row: Row = None
        """The last one: bytes may be set here instead of being added, at a third of the cost."""
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
        if isinstance(row, list):
            for place, tally in self._tallies.items():
                if (value := row[place]) is not None:
                    tally.add(value)

    def _fold(self) -> None:
        row = self.row
        if not row:
            return
        values = packing(len(self._names)).unpack(row) if isinstance(row, bytes) else row
        pairs = values.items() if isinstance(values, dict) else zip(self._names, values, strict=True)
        self._last.update((name, value) for name, value in pairs if value is not None)

    def figures(self) -> dict[str, float]:
        """Of what was added until now."""
        self._fold()
        found: dict[str, float] = {}
        reduced = {self._names[place]: tally for place, tally in self._tallies.items()}
        for name, value in self._last.items():
            tally = reduced.get(name)
            if tally is None or not (tally.count or tally.others):
                put(found, name, value)
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
