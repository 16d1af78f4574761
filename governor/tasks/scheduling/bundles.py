"""How many small sub-tasks travel together.

A message to a runner and back costs some 300 microseconds of waiting; a bundle is paid for once. What it costs is
fairness: the last one waits for the others. So a bundle holds about `BUNDLE_SECONDS` of work by what calls of the
same name took lately, and a call never seen before travels alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from governor.tasks.scheduling.batch import SubTask
    from governor.tasks.scheduling.events import Shape
    from governor.tasks.scheduling.ready_queue import ReadyQueue

BUNDLE_SECONDS: Final = 0.01
LARGEST: Final = 256
RUN_SECONDS: Final = 20e-6
"""What a run costs its runner that does nothing."""
WEIGHT: Final = 0.2
"""Of the last run in the mean."""


class Bundles:
    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def seen(self, call: str, seconds: float) -> None:
        """A run of this call has ended."""
        kind = call.partition("#")[0]  # objects of one class have one mean
        mean = self._means.get(kind)
        self._means[kind] = seconds if mean is None else mean + WEIGHT * (seconds - mean)

    def take(self, queue: ReadyQueue, shape: Shape, now: float, *, most: int) -> list[SubTask]:
        """The next pieces for one runner, one at least; the queue holds some."""
        taken: list[SubTask] = []
        seconds = 0.0
        most = min(most, LARGEST)
        while (subtask := queue.peek(shape, now)) is not None:
            mean = self._means.get(subtask.node.spec.call.partition("#")[0])
            if mean is not None:
                seconds += (mean + RUN_SECONDS) * len(subtask.missing)
            if taken and (mean is None or seconds > BUNDLE_SECONDS):
                break
            queue.take(shape, now)
            taken.append(subtask)
            if mean is None or len(taken) >= most:
                break
        return taken
