"""A set of whole numbers from 0 as ranges: its size is that of its gaps, not of its members."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class IndexRanges(msgspec.Struct, array_like=True):
    """`bounds`: the first index of each range and the one after its last, ascending, and no two ranges touch."""

    bounds: list[int] = []

    @classmethod
    def of(cls, indices: Iterable[int]) -> IndexRanges:
        found = cls()
        for index in indices:
            found.add(index)
        return found

    def add(self, index: int) -> bool:
        """Returns whether it is new. Amortized constant time when the indices come about in order."""
        bounds = self.bounds
        at = bisect_right(bounds, index)
        if at % 2:
            return False
        ends_before = at > 0 and bounds[at - 1] == index
        begins_behind = at < len(bounds) and bounds[at] == index + 1
        if ends_before and begins_behind:
            del bounds[at - 1 : at + 1]
        elif ends_before:
            bounds[at - 1] = index + 1
        elif begins_behind:
            bounds[at] = index
        else:
            bounds[at:at] = [index, index + 1]
        return True

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and bisect_right(self.bounds, index) % 2 == 1

    def __len__(self) -> int:
        return sum(self.bounds[1::2]) - sum(self.bounds[::2])

    def __iter__(self) -> Iterator[int]:
        for first, end in self.ranges:
            yield from range(first, end)

    @property
    def total(self) -> int:
        """The sum of the indices."""
        return sum((first + end - 1) * (end - first) // 2 for first, end in self.ranges)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [*zip(self.bounds[::2], self.bounds[1::2], strict=True)]

    def missing(self, wanted: range) -> Iterator[int]:
        """The indices of `wanted` (of step 1) that are not in the set, ascending, as the set is now."""
        for first, end in self._gaps(wanted):
            yield from range(first, end)

    def count_missing(self, wanted: range) -> int:
        return sum(end - first for first, end in self._gaps(wanted))

    @property
    def is_sound(self) -> bool:
        """Whether `bounds` are as they must be."""
        return len(self.bounds) % 2 == 0 and all(
            before < after for before, after in pairwise([-1, *self.bounds])
        )

    def _gaps(self, wanted: range) -> list[tuple[int, int]]:
        inside = self.bounds[bisect_right(self.bounds, wanted.start) : bisect_left(self.bounds, wanted.stop)]
        edges = [*([] if wanted.start in self else [wanted.start]), *inside]
        edges += [wanted.stop] if len(edges) % 2 else []
        return [gap for at, gap in enumerate(pairwise(edges)) if at % 2 == 0]
