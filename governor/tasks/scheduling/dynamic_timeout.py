"""A time-out learned from observed durations, for batches whose tasks have no fixed length.

The formula is that of Trinity-RFT's dynamic timeout: ``min(T, ratio * mean)``, where T is the time-out asked for and
mean that of the wall times of all train sub-tasks that ended, once `warmup_min_steps` train steps were fully
observed. Ours can take a percentile of the latest sub-tasks instead, which follows a policy whose episodes grow
longer and is not skewed by a few stragglers, and has a floor.

Rules:
1. Pure: no clock. Nothing here grows with the number of sub-tasks.
2. Evaluation is not observed: its durations differ, and its batches are large.
3. A sub-task that was stopped at its limit counts with its time until then. Otherwise the limit would shrink with each
   sub-task that it stops, until it stops all of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from governor.tasks.api import BatchId, DynamicTimeout


class TimeoutEstimator:
    """The limit that follows from the wall times of sub-tasks.

    `max_timeout` (seconds) is T where `limit` is not told another.

    Raises:
        ValueError: a setting of `config`, or `max_timeout`, makes no sense.
    """

    def __init__(self, config: DynamicTimeout, max_timeout: float) -> None:
        _check(config, max_timeout)
        self._config = config
        self._max_timeout = max_timeout
        self._total = 0.0
        self._count = 0
        self._observed: set[BatchId] = set()
        """Steps with an observed sub-task. It and `_done` are cleared after the warm-up."""
        self._done: set[BatchId] = set()
        self._warm = config.warmup_min_steps == 0
        self._latest: deque[float] = deque()
        self._ordered: list[float] = []

    def __repr__(self) -> str:
        steps = "warm" if self._warm else f"{len(self._done)} of {self._config.warmup_min_steps} steps"
        return f"<TimeoutEstimator {self._count} sub-tasks, {steps}, limit {self.limit():.6g} s>"

    def observe(self, step: BatchId, seconds: float, is_eval: bool) -> None:  # noqa: FBT001  # agreed with the engine
        """A sub-task of batch `step` ended, `seconds` after its last attempt had begun.

        Raises:
            ValueError: `seconds` is negative, infinite or NaN; nothing is changed.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"a sub-task of batch {step!r} cannot have taken {seconds!r} s")
        if is_eval:
            return
        self._total += seconds
        self._count += 1
        if not self._warm:
            self._observed.add(step)
        if self._config.percentile is not None:
            self._add_to_window(seconds)

    def step_done(self, step: BatchId) -> None:
        """All sub-tasks of train batch `step` have ended and were observed. A second call changes nothing. A step without
        an observed sub-task, such as an empty one or one restored from an earlier start, does not count.
        """
        if self._warm or step not in self._observed:
            return
        self._done.add(step)
        if len(self._done) >= self._config.warmup_min_steps:
            self._warm = True
            self._observed.clear()
            self._done.clear()

    def limit(self, timeout: float | None = None) -> float:
        """Seconds for an attempt: ``min(T, max(floor, ratio * mean))``, T being `timeout`, or `max_timeout` for None.

        T alone where the dynamic time-out is off, not warm yet, or nothing was observed. With `percentile`, that
        percentile of the last `window` sub-tasks (linear between ranks) stands for the mean.
        """
        bound = self._max_timeout if timeout is None else timeout
        if not self._config.enable or not self._warm or self._count == 0:
            return bound
        return min(bound, max(self._config.floor, self._config.ratio * self._typical()))

    def _typical(self) -> float:
        if self._config.percentile is None:
            return self._total / self._count
        rank = self._config.percentile / 100 * (len(self._ordered) - 1)
        below = math.floor(rank)
        low, high = self._ordered[below], self._ordered[math.ceil(rank)]
        return low + (high - low) * (rank - below)

    def _add_to_window(self, seconds: float) -> None:
        if len(self._latest) == self._config.window:
            del self._ordered[bisect_left(self._ordered, self._latest.popleft())]
        self._latest.append(seconds)
        insort(self._ordered, seconds)


def _check(config: DynamicTimeout, max_timeout: float) -> None:
    checks = (
        (max_timeout > 0, f"max_timeout must be above 0 s, not {max_timeout!r}"),
        (0 < config.ratio < math.inf, f"ratio must be above 0, not {config.ratio!r}"),
        (config.warmup_min_steps >= 0, f"warmup_min_steps must be 0 or more, not {config.warmup_min_steps}"),
        (
            config.percentile is None or 0 <= config.percentile <= 100,
            f"percentile must lie between 0 and 100, not {config.percentile!r}",
        ),
        (0 <= config.floor < math.inf, f"floor must be 0 s or more, not {config.floor!r}"),
        (config.window >= 1, f"window must be 1 or more, not {config.window}"),
    )
    faults = [fault for is_right, fault in checks if not is_right]
    if faults:
        raise ValueError(f"dynamic_timeout: {'; '.join(faults)}")
