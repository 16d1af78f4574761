"""How many small sub-tasks are sent together.

A message to a runner and back costs some 300 microseconds of waiting; a bundle costs it once. The price is fairness:
the last sub-task waits for the others. So a bundle holds about `BUNDLE_SECONDS` of work, estimated by the latest calls
of the same name, and a call without an estimate is sent alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from governor.tasks.scheduling.events import Shape
    from governor.tasks.scheduling.ready_queue import ReadyQueue
    from governor.tasks.scheduling.task_node import SubTask

BUNDLE_SECONDS: Final = 0.01
LEAST_SECONDS: Final = 0.001
"""A bundle is not split further for the sake of fairness: that would cost more than it gains."""
LARGEST: Final = 256
RUN_SECONDS: Final = 20e-6
"""Seconds that an empty run costs its runner."""
WEIGHT: Final = 0.2
"""Of the last run in the moving mean."""


class Bundles:
    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def observe(self, call: str, seconds: float) -> None:
        """A run of this call has taken so many seconds."""
        kind = call.partition("#")[0]  # objects of one class have one mean
        mean = self._means.get(kind)
        self._means[kind] = seconds if mean is None else mean + WEIGHT * (seconds - mean)

    def take(self, queue: ReadyQueue, shape: Shape, now: float, *, most: int) -> list[SubTask]:
        """The next sub-tasks for one runner, at least one, and `most` unless they are very short. The queue must not be empty."""
        taken, seconds, is_full = 0, 0.0, False

        def fits(subtask: SubTask) -> bool:
            nonlocal taken, seconds, is_full
            if is_full:
                return False
            mean = self._means.get(subtask.node.spec.call.partition("#")[0])
            if mean is not None:
                seconds += (mean + RUN_SECONDS) * subtask.unended
            if taken and (mean is None or seconds > BUNDLE_SECONDS):
                return False
            taken += 1
            is_full = mean is None or taken >= LARGEST or (taken >= most and seconds >= LEAST_SECONDS)
            return True

        return queue.take_while(shape, now, fits)
