"""When a simulation continues and when it stops: pure rules, no clock, no socket.

Rules:
1. At the end of an episode each rule gives a flow control; the strongest wins (`STRENGTH`).
2. A mean is over the last `average_over` training episodes in the order of their end, and only over those that were
   terminated or truncated: a failed or cancelled episode is no evidence about the agent.
3. `steps` counts the steps of all training episodes, and is checked when one ends. The simulation enforces `wall_clock`.
4. Several `until` are alternatives: the first one that holds stops the simulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

import msgspec

from governor.episodes.metrics import NONFINITE
from governor.messages import COMPLETE, EpisodeRecord, FlowControl, StartSimulation, Until
from governor.messages.figures import GoalFigures

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

STRENGTH: Final[dict[FlowControl, int]] = {flow: level for level, flow in enumerate(get_args(FlowControl))}

METRICS: Final[dict[str, Callable[[EpisodeRecord], float]]] = {
    "return": lambda record: record.value,
    "steps": lambda record: float(record.steps),
    "seconds": lambda record: record.seconds,
}
"""Metrics of every episode, beside ``return.PLAYER``."""
_OF_PLAYER: Final = "return."


def is_metric(name: str, *, info: Collection[str] = (), reports: Collection[str] = ()) -> bool:
    """Whether episodes may have it: of `info` keys and ``PLAYER.key``, each also with ``.nonfinite``, or anything if it is ``all``."""
    if name in METRICS or (name.startswith(_OF_PLAYER) and len(name) > len(_OF_PLAYER)) or info == "all":
        return True
    plain = name.removesuffix(NONFINITE)
    return plain in reports or plain in info or any(plain.endswith(f".{key}") for key in info)


def measure(record: EpisodeRecord, metric: str) -> float | None:
    """None if the episode does not have it, and for an episode that was neither terminated nor truncated."""
    if record.outcome not in COMPLETE:
        return None
    if metric in METRICS:
        return METRICS[metric](record)
    if metric.endswith(NONFINITE):
        return record.metrics.get(metric, 0.0)
    value = record.values.get(metric.removeprefix(_OF_PLAYER)) if metric.startswith(_OF_PLAYER) else None
    return record.metrics.get(metric) if value is None else value


def holds(value: float, *, at_least: float | None, at_most: float | None) -> bool:
    """A bound of None always holds."""
    return (at_least is None or value >= at_least) and (at_most is None or value <= at_most)


def strongest(flows: Iterable[FlowControl]) -> FlowControl:
    """The strongest flow control; CONTINUE without any."""
    return max(flows, key=STRENGTH.__getitem__, default="CONTINUE")


def faults(command: StartSimulation) -> list[str]:
    """The rules with an unknown metric, one line each."""
    sections = (command.evaluate, command.checkpoint)
    rules = [*command.until, *(section for section in sections if section is not None)]
    return [
        f"unknown metric {rule.metric!r}; known: {', '.join(sorted({*METRICS, *command.info, *command.reports}))}"
        for rule in rules
        if rule.metric is not None and not is_metric(rule.metric, info=command.info, reports=command.reports)
    ]


def wall_clock(until: Iterable[Until]) -> float | None:
    """The time limit of the phase in seconds; None without one."""
    return min((each.wall_clock for each in until if each.wall_clock is not None), default=None)


class Goal:
    """The `until` conditions of a phase, updated with each episode as it ends. `figures`: of the episodes before."""

    def __init__(self, until: Iterable[Until], figures: GoalFigures | None = None) -> None:
        conditions = list(until)
        self.figures = figures if figures is not None else GoalFigures()
        self._conditions = [each for each in conditions if each.metric is not None]
        self._limit = min((each.steps for each in conditions if each.steps is not None), default=None)
        missing = len(self._conditions) - len(self.figures.windows)
        self.figures.windows += [[] for _ in range(missing)]

    def would_be(self, records: Iterable[EpisodeRecord]) -> FlowControl:
        """The flow control if these episodes ended now; the state does not change."""
        known = self.figures
        self.figures = msgspec.structs.replace(known, windows=[window.copy() for window in known.windows])
        try:
            return strongest([self.ended(record) for record in records])
        finally:
            self.figures = known

    def ended(self, record: EpisodeRecord) -> FlowControl:
        """STOP_SIMULATION when a condition holds now, else CONTINUE."""
        if record.evaluation:
            return "CONTINUE"
        figures = self.figures
        figures.steps += record.steps
        reached = False
        for condition, window in zip(self._conditions, figures.windows, strict=True):
            value = measure(record, condition.metric or "")
            if value is None:
                continue
            append_bounded(window, value, most=condition.average_over)
            if len(window) == condition.average_over:
                average = sum(window) / len(window)
                reached |= holds(average, at_least=condition.at_least, at_most=condition.at_most)
        figures.reached |= reached
        return "STOP_SIMULATION" if reached or self._has_enough_steps else "CONTINUE"

    @property
    def _has_enough_steps(self) -> bool:
        return self._limit is not None and self.figures.steps >= self._limit

    @property
    def is_reached(self) -> bool:
        """Whether a condition has held."""
        return self.figures.reached or self._has_enough_steps


def append_bounded(window: list[float], value: float, *, most: int) -> None:
    """Appends; drops the first value if there are more than `most`."""
    window.append(value)
    if len(window) > most:
        del window[0]
