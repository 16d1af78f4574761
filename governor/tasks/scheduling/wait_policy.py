"""How long a caller waits for a batch: until enough tasks have ended and the extra time is over, or a timeout.

Pure: the caller calls `check` whenever a task ended and when `next_alarm` is due, until all have ended. Times are seconds of
the caller's clock.

Rules:
1. `min_num` tasks are counted, and `wait_after_min` seconds have passed since: ``"enough"``.
2. The deadline has passed: ``"enough"`` if `min_num` is reached, else ``"timeout"``. So ``"timeout"`` always means that
   there are too few.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["all", "enough", "timeout"]


class WaitPolicy:
    """The wait for one batch.

    Args:
        min_num: tasks that are enough; None: only all of them are.
        wait_after_min: seconds for the other tasks once `min_num` is reached.
        deadline: latest end of the wait, on the clock of `now`.

    Raises:
        ValueError: a number is negative or NaN.
    """

    def __init__(self, *, min_num: int | None, wait_after_min: float, deadline: float) -> None:
        if (min_num is not None and min_num < 0) or not wait_after_min >= 0:
            raise ValueError(f"min_num={min_num} and wait_after_min={wait_after_min} must be 0 or more")
        if math.isnan(deadline):
            raise ValueError("the deadline is NaN")
        self._min_num = math.inf if min_num is None else min_num
        self._wait_after_min = wait_after_min
        self._deadline = deadline
        self._enough_at = math.inf

    def check(self, counted: int, now: float) -> Verdict | None:
        """Why the wait is over, with so many tasks that count for `min_num`; None: it goes on until another task ends or
        `next_alarm` is due.
        """
        reached = counted >= self._min_num
        if reached:
            self._enough_at = min(self._enough_at, now + self._wait_after_min)
        if reached and now >= min(self._enough_at, self._deadline):
            return "enough"
        return "timeout" if now >= self._deadline else None

    def next_alarm(self) -> float:
        """When to call `check` again if no task ends before, as of its last call; infinity: time alone changes nothing."""
        return min(self._enough_at, self._deadline)


def min_wait_num(total: int, ratio: float) -> int:
    """Tasks to wait for when a share `ratio` of `total` may be abandoned: ``ceil(total * (1 - ratio))``.

    In floats ``10 * (1 - 0.1)`` may land just above 9 and be rounded up to 10; a result within the rounding error of a
    whole number counts as that number.

    Raises:
        ValueError: `total` is negative, or `ratio` does not lie between 0 and 1.
    """
    if total < 0 or not 0 <= ratio <= 1:
        raise ValueError(f"total={total} must be 0 or more, and ratio={ratio} must lie between 0 and 1")
    return max(0, math.ceil(total * (1 - ratio) - total * 1e-12))
