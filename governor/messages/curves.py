"""Curves: how a metric went over episodes, steps and time, in a bounded size whatever the number of its values.

Rules:
1. A curve has at most `WINDOWS` windows of equal width along its key: the episode's index, or the step of a value that belongs to
   no episode. One more, and all windows double in width. Only windows with values are kept.
2. A curve is a function of the set of its values: order, batches, restarts and merges change nothing, not even a bit. So sums are
   exact, and windows and buckets are aligned at powers of two: a coarser one is exactly two finer ones.
3. The quantiles of a window are read from a histogram of at most `BUCKETS` buckets with values. One more, and they double in width.
4. NaN, the infinities and what is beyond +-`HUGE` are counted, and are in no window.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import compress, pairwise, repeat
from math import frexp, fsum, ldexp
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from governor.messages.conductor import ReportedSums

WINDOWS: Final = 160
BUCKETS: Final = 32
HUGE: Final = 1e290
"""Sums of values below it can't overflow."""
PENDING: Final = 128
"""Values that are put into their windows together."""
CURVES: Final = 100
"""Of a phase: its first metrics have one."""
EVALUATION: Final = "evaluation."
"""Begins the name of a curve of evaluations."""
QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)
_PRECISION: Final = 40
"""Bits: a bucket is at least this much narrower than the largest magnitude of its window."""
_LOWEST: Final = -1114
"""Level of a window whose values are all 0."""


class Window(msgspec.Struct, gc=False, array_like=True):
    """Values side by side: their number, minimum and maximum, the ranges of their keys, steps and times. `sums`: floats with their
    exact sum. `buckets`: msgpack of [index, count, gap to the next index, its count, ...]; bucket i has the values v with
    trunc(v / 2**level) == i.
    """

    count: int
    low: float
    high: float
    first_key: int
    last_key: int
    first_step: int
    last_step: int
    first_at: float
    last_at: float
    sums: tuple[float, ...]
    level: int
    buckets: bytes

    @classmethod
    def of(
        cls,
        keys: Sequence[float],
        values: Sequence[float],
        steps: Sequence[float],
        times: Sequence[float],
        *,
        level: int = _LOWEST,
    ) -> Window:
        """Of at least one value, in any order; to be merged with one of this `level`."""
        low, high = min(values), max(values)
        level = max(level, _finest(low, high))
        counts: dict[int, int] = Counter(map(int, map(ldexp, values, repeat(-level))))
        level, counts = _coarser(level, counts, level)
        return cls(
            count=len(values),
            low=low + 0.0,
            high=high + 0.0,  # which makes -0.0 and 0 one value
            first_key=int(min(keys)),
            last_key=int(max(keys)),
            first_step=int(min(steps)),
            last_step=int(max(steps)),
            first_at=float(min(times)),
            last_at=float(max(times)),
            sums=_exact_sum(values),
            level=level,
            buckets=_pack(counts),
        )

    def merge(self, other: Window) -> None:
        self.count += other.count
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.first_key = min(self.first_key, other.first_key)
        self.last_key = max(self.last_key, other.last_key)
        self.first_step = min(self.first_step, other.first_step)
        self.last_step = max(self.last_step, other.last_step)
        self.first_at, self.last_at = min(self.first_at, other.first_at), max(self.last_at, other.last_at)
        self.sums = _exact_sum((*self.sums, *other.sums))
        level = max(self.level, other.level, _finest(self.low, self.high))
        _, counts = _coarser(self.level, _unpack(self.buckets), level)
        _, others = _coarser(other.level, _unpack(other.buckets), level)
        for index, count in others.items():
            counts[index] = counts.get(index, 0) + count
        self.level, counts = _coarser(level, counts, level)
        self.buckets = _pack(counts)

    @classmethod
    def of_sums(cls, many: Sequence[ReportedSums]) -> Window:
        """Of reports with finite values: of each its minimum, its maximum, and as many equal values between them as there were."""
        low, high = min(sums.low for sums in many) + 0.0, max(sums.high for sums in many) + 0.0
        level = _finest(low, high)
        counts: dict[int, int] = Counter()
        values: list[float] = []
        for sums in many:
            for value, number in sums.points:
                counts[int(ldexp(value, -level))] += number
                values.append(value * number)
        level, counts = _coarser(level, counts, level)
        first, last = min(sums.before for sums in many) + 1, max(sums.total for sums in many)
        return cls(
            count=sum(sums.count for sums in many),
            low=low,
            high=high,
            first_key=first,
            last_key=last,
            first_step=first,
            last_step=last,
            first_at=min(sums.seconds for sums in many),
            last_at=max(sums.seconds for sums in many),
            sums=_exact_sum(values),
            level=level,
            buckets=_pack(counts),
        )

    @property
    def mean(self) -> float:
        return fsum(self.sums) / self.count

    def quantiles(self, shares: Iterable[float] = QUANTILES) -> tuple[float, ...]:
        """For each of `shares`, in 0..1, the value that so much of the values are below: as if those of a bucket were evenly
        spread in it. Exact for the minimum and the maximum, and for few different short numbers.
        """
        is_finest = self.level == _finest(self.low, self.high)
        edges: list[tuple[int, float]] = []
        seen = 0
        for index, count in sorted(_unpack(self.buckets).items()):
            # Bucket 0 reaches to both sides of 0. In one of the finest the values are as good as equal.
            begin, end = (index, index) if is_finest else (index - (index <= 0), index + (index >= 0))
            edges += (seen, self._inside(begin)), (seen + count, self._inside(end))
            seen += count
        if is_finest and len(edges) > 2:
            edges[1], edges[-2] = (edges[1][0], self.low), (edges[-2][0], self.high)
        edges[0], edges[-1] = (0, self.low), (seen, self.high)
        return tuple(_interpolated(edges, share * seen) for share in shares)

    def _inside(self, edge: int) -> float:
        return min(max(ldexp(edge, self.level), self.low), self.high)


class Curve(msgspec.Struct):
    """The values of a metric. `windows`: by number; the one of a key is ``key >> shift``. `by_step`: the keys are steps, for the
    values belong to no episode. `unusable`: how many values are in no window (rule 4). `pending`: key, value, step and time of
    each value that is not in its window yet (see `fold`).
    """

    windows: dict[int, Window] = {}
    shift: int = 0
    by_step: bool = False
    unusable: int = 0
    pending: list[int | float] = []

    def add(self, value: float, *, episode: int | None, step: int, at: float) -> None:
        """`step`: the steps of the phase when the value arose; `at`: the seconds that the phase had been in work. `episode` is
        an index from 0; None for all values of a curve, or for none.
        """
        if episode is None:
            self.by_step, episode = True, step
        pending = self.pending
        pending += (episode, value, step, at)
        if len(pending) >= 4 * PENDING:
            self.fold()

    def add_sums(self, many: Iterable[ReportedSums]) -> None:
        """Adds what tasks have reported. A step is the number of the report in its run of the task, from 1; the values of one
        `ReportedSums` are in one window, that of the first.
        """
        self.by_step = True
        groups: dict[int, list[ReportedSums]] = {}
        for sums in many:
            self.unusable += sums.others
            if sums.count * max(abs(sums.low), abs(sums.high)) >= HUGE:
                self.unusable += sums.count
            elif sums.count:
                groups.setdefault((sums.before + 1) >> self.shift, []).append(sums)
        for number, group in groups.items():
            self._take(number, Window.of_sums(group))
        while len(self.windows) > WINDOWS:
            self._double()

    def fold(self) -> None:
        """Puts what is pending into its windows."""
        pending, self.pending = self.pending, []
        self._put(pending[0::4], pending[1::4], pending[2::4], pending[3::4])

    def _put(self, *columns: Sequence[float]) -> None:
        """Keys, values, steps and times."""
        usable = [-HUGE < value < HUGE for value in columns[1]]
        if not all(usable):
            self.unusable += usable.count(False)
            columns = tuple([*compress(column, usable)] for column in columns)
        keys = columns[0]
        if not keys:
            return
        if (number := int(min(keys)) >> self.shift) == int(max(keys)) >> self.shift:
            self._widen(number, *columns)
        else:
            numbers = [int(key) >> self.shift for key in keys]
            while len(self.windows.keys() | numbers) > WINDOWS:  # before there is one for each value
                self._double()
                numbers = [number >> 1 for number in numbers]
            groups: dict[int, list[tuple[float, ...]]] = {}
            for number, row in zip(numbers, zip(*columns, strict=True), strict=True):
                groups.setdefault(number, []).append(row)
            for number, group in groups.items():
                self._widen(number, *zip(*group, strict=True))
        while len(self.windows) > WINDOWS:
            self._double()

    def _widen(self, number: int, *columns: Sequence[float]) -> None:
        """Columns for the window of this number."""
        known = self.windows.get(number)
        new = Window.of(*columns, level=known.level if known is not None else _LOWEST)
        self._take(number, new)

    def merge(self, other: Curve) -> None:
        """Adds all values of `other`, which stays as it is."""
        self.fold()
        self.unusable += other.unusable
        self.by_step |= other.by_step
        while self.shift < other.shift:
            self._double()
        for number, window in other.windows.items():
            self._take(number >> (self.shift - other.shift), msgspec.structs.replace(window))
        self._put(*(other.pending[field::4] for field in range(4)))

    @property
    def count(self) -> int:
        """Of the values in windows."""
        self.fold()
        return sum(window.count for window in self.windows.values())

    @property
    def in_order(self) -> list[Window]:
        """All windows; each is ``1 << shift`` keys wide."""
        self.fold()
        return [window for _, window in sorted(self.windows.items())]

    def _take(self, number: int, window: Window) -> None:
        known = self.windows.setdefault(number, window)
        if known is not window:
            known.merge(window)

    def _double(self) -> None:
        self.shift += 1
        finer, self.windows = self.windows, {}
        for number, window in finer.items():
            self._take(number >> 1, window)


def _exact_sum(values: Iterable[float]) -> tuple[float, ...]:
    """Floats whose exact sum is that of `values`: the nearest float, the one nearest to what is left, and so on."""
    rest, parts = [*values], []
    while part := fsum(rest):
        parts.append(part)
        rest.append(-part)
    return tuple(parts)


def _finest(low: float, high: float) -> int:
    largest = max(abs(low), abs(high))
    return max(frexp(largest)[1] - _PRECISION, _LOWEST) if largest else _LOWEST


def _coarser(level: int, counts: dict[int, int], least: int) -> tuple[int, dict[int, int]]:
    """The buckets at level `least`, or at the next one at which they are few enough."""

    def few(by: int) -> bool:
        return len({_halved(index, by) for index in counts}) <= BUCKETS

    by = least - level
    if len(counts) > BUCKETS and not few(by):
        by = by + 1 if few(by + 1) else bisect_left(range(by + _PRECISION), True, lo=by + 2, key=few)
    if not by:
        return level, counts
    merged: dict[int, int] = {}
    for index, count in counts.items():
        coarse = _halved(index, by)
        merged[coarse] = merged.get(coarse, 0) + count
    return level + by, merged


def _halved(index: int, times: int) -> int:
    return index >> times if index >= 0 else -(-index >> times)


def _pack(counts: dict[int, int]) -> bytes:
    ordered = sorted(counts.items())
    (first, count), *_ = ordered
    flat = [first, count]
    for (before, _), (index, number) in pairwise(ordered):
        flat += index - before, number
    return msgspec.msgpack.encode(flat)


def _unpack(packed: bytes) -> dict[int, int]:
    flat = msgspec.msgpack.decode(packed, type=list[int])
    counts, index = {}, 0
    for gap, count in zip(flat[::2], flat[1::2], strict=True):
        index += gap
        counts[index] = count
    return counts


def _interpolated(edges: Sequence[tuple[int, float]], rank: float) -> float:
    for (before, begin), (after, end) in pairwise(edges):
        if before < after and rank <= after:
            between = begin + (end - begin) * ((rank - before) / (after - before))
            return end if rank == after else min(max(between, begin), end)
    return edges[-1][1]
