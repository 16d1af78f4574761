"""When a simulation continues and when it stops: pure rules, no clock, no socket.

Rules:
1. At the end of an episode each rule gives a flow control; the strongest wins (`STRENGTH`).
2. A mean is over the last `average_over` training episodes in the order of their end, and only over those that were
   terminated or truncated: a failed or cancelled episode is no evidence about the agent.
3. `steps` counts the steps of all training episodes, and is checked when one ends. The simulation enforces `wall_clock`.
4. Several `until` are alternatives: the first one that holds stops the simulation.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, get_args

from governor.episodes.rules.statistics import mean_of
from governor.messages import COMPLETE, EpisodeRecord, Evaluate, FlowControl, StartSimulation, Until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

STRENGTH: Final[dict[FlowControl, int]] = {flow: level for level, flow in enumerate(get_args(FlowControl))}

METRICS: Final[dict[str, Callable[[EpisodeRecord], float]]] = {
    "return": lambda record: record.value,
    "steps": lambda record: float(record.steps),
    "seconds": lambda record: record.seconds,
}
"""Metrics that an `until` may name, beside ``return.PLAYER``."""
_OF_PLAYER: Final = "return."


def is_metric(name: str) -> bool:
    return name in METRICS or (name.startswith(_OF_PLAYER) and len(name) > len(_OF_PLAYER))


def measure(record: EpisodeRecord, metric: str) -> float | None:
    """None for a player that did not take part, and for an episode that was neither terminated nor truncated."""
    if record.outcome not in COMPLETE:
        return None
    if metric in METRICS:
        return METRICS[metric](record)
    return record.values.get(metric.removeprefix(_OF_PLAYER))


def mean(records: Iterable[EpisodeRecord], metric: str) -> float | None:
    """The mean; None without a measurable episode."""
    values = [value for record in records if (value := measure(record, metric)) is not None]
    return mean_of(values) if values else None


def holds(value: float, *, at_least: float | None, at_most: float | None) -> bool:
    """A bound of None always holds."""
    return (at_least is None or value >= at_least) and (at_most is None or value <= at_most)


def strongest(flows: Iterable[FlowControl]) -> FlowControl:
    """The strongest flow control; CONTINUE without any."""
    return max(flows, key=STRENGTH.__getitem__, default="CONTINUE")


def faults(command: StartSimulation) -> list[str]:
    """The rules with an unknown metric, one line each."""
    rules: list[Until | Evaluate] = [*command.until, *([command.evaluate] if command.evaluate else [])]
    return [
        f"unknown metric {rule.metric!r}; known: {', '.join(sorted(METRICS))}"
        for rule in rules
        if rule.metric is not None and not is_metric(rule.metric)
    ]


def wall_clock(until: Iterable[Until]) -> float | None:
    """The time limit of the phase in seconds; None without one."""
    return min((each.wall_clock for each in until if each.wall_clock is not None), default=None)


def played_seconds(done: Iterable[EpisodeRecord]) -> float:
    """Seconds that an earlier process spent on its episodes: those of its busiest worker."""
    busy: dict[int, float] = {}
    for record in done:
        busy[record.worker] = busy.get(record.worker, 0.0) + record.seconds
    return max(busy.values(), default=0.0)


class Goal:
    """The `until` conditions of a phase, updated with each episode as it ends."""

    def __init__(self, until: Iterable[Until]) -> None:
        conditions = list(until)
        self._windows = [
            (condition, condition.metric, deque[float](maxlen=condition.average_over))
            for condition in conditions
            if condition.metric is not None
        ]
        self._limit = min((each.steps for each in conditions if each.steps is not None), default=None)
        self._steps = 0

    def would_be(self, records: Iterable[EpisodeRecord]) -> FlowControl:
        """The flow control if these episodes ended now; the state does not change."""
        windows, steps = self._windows, self._steps
        self._windows = [(condition, metric, window.copy()) for condition, metric, window in windows]
        try:
            return strongest([self.ended(record) for record in records])
        finally:
            self._windows, self._steps = windows, steps

    def ended(self, record: EpisodeRecord) -> FlowControl:
        """STOP_SIMULATION when a condition holds now, else CONTINUE."""
        if record.evaluation:
            return "CONTINUE"
        self._steps += record.steps
        reached = self._limit is not None and self._steps >= self._limit
        for condition, metric, window in self._windows:
            value = measure(record, metric)
            if value is None:
                continue
            window.append(value)
            if len(window) == window.maxlen:
                average = sum(window) / len(window)
                reached |= holds(average, at_least=condition.at_least, at_most=condition.at_most)
        return "STOP_SIMULATION" if reached else "CONTINUE"
