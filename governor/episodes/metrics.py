"""Numbers that user code gives for an episode: scalars of `info`, and what it reports.

Rules:
1. A number is a bool, an int, a float, a scalar of numpy, or another object that `float` takes. It becomes a float64; text is
   no number.
2. A figure on record is finite. NaN and infinities are left out of it, and counted as ``<name>.nonfinite``.
3. Each episode, and each process, has at most `MOST` names; later ones are dropped, and that is logged once.
"""

from __future__ import annotations

import re
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from governor import logs

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST: Final = 64
NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9_./:-]{0,63}$"
NOT_A_NAME: Final = (
    "cannot be the name of a metric: that is at most 64 of a-z, A-Z, 0-9 and _ . / : - "
    "and begins with a letter, a digit or '_'"
)
NONFINITE: Final = ".nonfinite"
Sums: TypeAlias = dict[str, list[float]]
"""For each name the number of finite values, their sum, and the number of the others."""

is_name: Final = re.compile(NAME).match
log = logs.get_logger()


def number(value: Any) -> float:
    """Raises TypeError, with what the value is, if it is no number."""
    if not isinstance(value, str | bytes | bytearray) and not getattr(value, "ndim", 0):
        try:
            return float(value)
        except OverflowError:
            return inf if value > 0 else -inf
        except (TypeError, ValueError):
            pass
    raise TypeError(f"is {_described(value)}, not a number")


def _described(value: Any) -> str:
    if getattr(value, "ndim", 0):
        return f"an array of shape {tuple(value.shape)}"
    return f"of type {type(value).__name__}"


class Reported:
    """What was reported for one episode. For one thread at a time."""

    __slots__ = ("sums",)

    def __init__(self) -> None:
        self.sums: Sums = {}

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            known = self.sums.get(name) or self._new(name)
            if isfinite(value):
                known[0] += 1
                known[1] += value
            else:
                known[2] += 1

    def merge(self, sums: Sums) -> None:
        for name, more in sums.items():
            known = self.sums.get(name) or self._new(name)
            for place, value in enumerate(more):
                known[place] += value

    def _new(self, name: str) -> list[float]:
        """The sums of a name that has none yet; beyond `MOST` names they are kept nowhere."""
        sums: list[float] = [0, 0.0, 0]
        if len(self.sums) < MOST:
            self.sums[name] = sums
        else:
            drop(name)
        return sums

    def take(self) -> Sums:
        """What was added since the last call."""
        sums, self.sums = self.sums, {}
        return sums

    def figures(self) -> dict[str, float]:
        """The mean of each name, and how many values were not finite."""
        found: dict[str, float] = {}
        for name, (count, total, others) in self.sums.items():
            if count:
                put(found, name, total / count)
            if others:
                found[name + NONFINITE] = float(others)
        return found


def put(figures: dict[str, float], name: str, value: float) -> None:
    """Adds a figure of an episode (rule 2)."""
    if isfinite(value):
        figures[name] = value
    else:
        figures[name + NONFINITE] = 1.0


_told: set[str] = set()


def drop(name: str) -> None:
    if "names" not in _told:
        _told.add("names")
        log.warning("metrics.too_many_names", most=MOST, dropped=name)


def checked(values: Mapping[Any, Any], *, of: str) -> dict[str, float]:
    """The numbers of a report; `of` names it in errors. Raises TypeError or ValueError, which name the value."""
    found = {}
    for name, value in values.items():
        if name not in _names:
            _check_name(name, of=of)
        try:
            found[name] = value if type(value) is float else number(value)
        except TypeError as error:
            raise TypeError(f"{of}: {name!r} {error}") from None
    return found


def _check_name(name: Any, *, of: str) -> None:
    """Raises ValueError for what cannot be a name."""
    if not isinstance(name, str) or not is_name(name):
        raise ValueError(f"{of}: {name!r} {NOT_A_NAME}")
    if len(_names) < MOST:
        _names.add(name)


_names: set[Any] = set()
"""Some of the names that were checked: a report is rare, so that its cost is that of the code that it touches."""
