"""How long a caller waits for a batch: until all tasks have ended, or enough have and the extra time is over, or a timeout.

Pure: the caller calls `check` whenever a task ended and when `next_alarm` is due. Times are seconds of the caller's clock.

Rules:
1. All tasks have ended: ``"all"``.
2. `min_num` tasks have succeeded, and `wait_after_min` seconds have passed since: ``"enough"``.
3. The deadline has passed: ``"enough"`` if `min_num` is reached, else ``"timeout"``. So ``"timeout"`` always means that
   there are too few.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["all", "enough", "timeout"]


class WaitPolicy:
    """The wait for one batch of `total` tasks.

    Args:
        total: tasks of the batch.
        min_num: tasks that are enough; None, or more than `total`: all of them, without a time limit.
        wait_after_min: seconds for the other tasks once `min_num` is reached.
        deadline: latest end of the wait, on the clock of `now`; None: no deadline.
        count: the tasks counted for `min_num`: those that succeeded, or all that ended. With the latter, failures
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

    def check(self, *, ended: int, succeeded: int, now: float) -> Verdict | None:
        """Why the wait is over; None: it goes on until another task ends or `next_alarm` is due. `ended` counts all tasks
        with an outcome, `succeeded` those of them that succeeded.
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
        """When to call `check` again if no task ends before, as of its last call; None: time alone changes nothing."""
        when = min(self._enough_at, self._deadline)
        return None if when == math.inf else when

    def _counted(self, ended: int, succeeded: int) -> int:
        return succeeded if self._count == "succeeded" else ended


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
