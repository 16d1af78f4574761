"""How long a caller waits for a batch: until all have ended, or enough have and the rest had its chance, or time is up.

Pure: the caller looks whenever a task ended and when `next_alarm` rings. Times are seconds of one clock, the caller's.

Rules:
1. All tasks have ended: ``"all"``.
2. `min_num` tasks have succeeded, and `wait_after_min` seconds have passed since: ``"enough"``.
3. The deadline: ``"enough"`` where `min_num` is reached, for there is nothing more to wait for; else ``"timeout"``.
   So ``"timeout"`` always means: too few.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["all", "enough", "timeout"]


class WaitPolicy:
    """The wait for one batch of `total` tasks.

    Args:
        total: tasks of the batch.
        min_num: tasks that are enough; None, or more than `total`: all of them, however long that takes.
        wait_after_min: seconds for the rest once `min_num` is reached.
        deadline: end of all patience, on the clock of `now`; None: there is none.
        count: what counts for `min_num`: tasks that succeeded, or every task that ended. With the latter, failures
            alone can be enough.

    Raises:
        ValueError: a number is negative or NaN.
    """

    def __init__(
        self,
        *,
        total: int,
        min_num: int | None,
        wait_after_min: float,
        deadline: float | None,
        count: Literal["succeeded", "ended"] = "succeeded",
    ) -> None:
        if total < 0 or (min_num is not None and min_num < 0) or not wait_after_min >= 0:
            raise ValueError(
                f"total={total}, min_num={min_num} and wait_after_min={wait_after_min} must be 0 or more"
            )
        if deadline is not None and math.isnan(deadline):
            raise ValueError("the deadline is NaN")
        self._total = total
        self._min_num = math.inf if min_num is None else min_num
        self._wait_after_min = wait_after_min
        self._deadline = math.inf if deadline is None else deadline
        self._count = count
        self._enough_at = math.inf

    def look(self, *, ended: int, succeeded: int, now: float) -> Verdict | None:
        """Whether the wait is over, and why. `ended` counts all tasks with an outcome, `succeeded` those among them
        that are good. None: wait on, until one more ends or `next_alarm` rings.
        """
        if ended >= self._total:
            return "all"
        reached = self._counted(ended, succeeded) >= self._min_num
        if reached:
            self._enough_at = min(self._enough_at, now + self._wait_after_min)
        if reached and now >= min(self._enough_at, self._deadline):
            return "enough"
        return "timeout" if now >= self._deadline else None

    def next_alarm(self) -> float | None:
        """When to look again if no task ends before, as of the last look; None: time alone changes nothing."""
        when = min(self._enough_at, self._deadline)
        return None if when == math.inf else when

    def _counted(self, ended: int, succeeded: int) -> int:
        return succeeded if self._count == "succeeded" else ended


def min_wait_num(total: int, ratio: float) -> int:
    """Tasks to wait for when a share `ratio` of `total` may be left behind: ``ceil(total * (1 - ratio))``.

    In floats ``10 * (1 - 0.1)`` may land just above 9 and be rounded up to 10; what is within the error of the
    multiplication counts as the whole number that was meant.

    Raises:
        ValueError: `total` is negative, or `ratio` does not lie between 0 and 1.
    """
    if total < 0 or not 0 <= ratio <= 1:
        raise ValueError(f"total={total} must be 0 or more, and ratio={ratio} must lie between 0 and 1")
    return max(0, math.ceil(total * (1 - ratio) - total * 1e-12))
