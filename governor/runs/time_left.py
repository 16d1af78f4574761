"""About how long a run still takes, from the pace of its episodes, steps and tasks within the last minute. Pure: `now` is given.

Rules:
1. A phase takes as long as the slowest of its parts; its simulation ends with the first of its limits: `episodes`, and the
   `steps` and `wall_clock` of `until`. A condition on a metric may end it earlier.
2. Episodes of later phases are expected at the pace of this one. How long tasks of later phases take is not known.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from governor.messages import TimeLeft

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.run_file.phase_model import Phase

SPAN: Final = 60.0
"""Seconds over which the pace is measured."""
_BETWEEN: Final = 1.0
"""Seconds between two marks, at least."""


class Mark(NamedTuple):
    """What of a phase had ended at a moment; evaluation episodes are no `episodes`."""

    at: float
    episodes: int
    steps: int
    tasks: int


class Pace:
    """The marks of the last `SPAN` seconds of a phase."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque()

    def begin(self, mark: Mark) -> None:
        """Forgets the marks of another phase."""
        self._marks = deque([mark])

    def add(self, mark: Mark) -> None:
        """Cheap: most marks are dropped."""
        if self._marks and mark.at - self._marks[-1].at < _BETWEEN:
            return
        self._marks.append(mark)
        while len(self._marks) > 2 and mark.at - self._marks[1].at > SPAN:  # the first one is before the span
            self._marks.popleft()

    def left(self, now: Mark, phases: Iterable[Phase], *, worked: float) -> TimeLeft | None:
        """`phases`: the current one, and those behind it; `worked`: seconds that the current one has been in work. None as long as
        nothing has ended.
        """
        current, *later = phases
        if not self._marks or now.at <= (first := self._marks[0]).at:
            return None
        passed = now.at - first.at
        per_episode = passed / (now.episodes - first.episodes) if now.episodes > first.episodes else None
        parts: list[float | None] = []
        if current.simulate is not None:
            parts.append(_simulation(current, now, first, worked=worked))
        if tasks := sum(task.repeat for task in current.tasks) - now.tasks:
            parts.append(tasks * passed / (now.tasks - first.tasks) if now.tasks > first.tasks else None)
        phase = max((part for part in parts if part is not None), default=None)
        if phase is None or None in parts:
            return None
        run: float | None = phase
        for each in later:
            episodes = each.simulate.episodes if each.simulate is not None else 0
            known = run is not None and not each.tasks and (per_episode is not None or not episodes)
            run = (run or 0.0) + episodes * (per_episode or 0.0) if known else None
        return TimeLeft(phase=phase, run=run, at_most=any(map(_may_end_early, (current, *later))))


def _may_end_early(phase: Phase) -> bool:
    evaluate = phase.evaluate
    by_evaluation = (
        evaluate is not None and (evaluate.at_least, evaluate.at_most, evaluate.plateau) != (None,) * 3
    )
    return by_evaluation or any(rule.metric is not None or rule.entry is not None for rule in phase.until)


def _simulation(phase: Phase, now: Mark, first: Mark, *, worked: float) -> float | None:
    """None: not known."""
    passed = now.at - first.at
    if phase.simulate is None or now.episodes >= phase.simulate.episodes:
        return 0.0
    bounds = []
    if now.episodes > first.episodes:
        bounds.append((phase.simulate.episodes - now.episodes) * passed / (now.episodes - first.episodes))
    for rule in phase.until:
        if rule.steps is not None and now.steps > first.steps:
            bounds.append(max(rule.steps - now.steps, 0) * passed / (now.steps - first.steps))
        if rule.wall_clock is not None:
            bounds.append(max(rule.wall_clock - worked, 0.0))
    return min(bounds, default=None)
