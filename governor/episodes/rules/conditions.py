"""When a simulation continues and when it stops: pure rules, no clock, no socket.

Rules:
1. At the end of an episode each `Condition` gives a flow control, whether it is built in or the user's
   (`user_conditions`); the strongest wins (`STRENGTH`).
2. A mean is over the last `average_over` training episodes in the order of their end, and only over those that were
   terminated or truncated: a failed or cancelled episode is no evidence about the agent.
3. `steps` counts the steps of all training episodes, and is checked when one ends. The simulation enforces `wall_clock`.
4. Several `until` are alternatives: the first one that holds stops the simulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, get_args

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


METHODS: Final = ("episode_flow_control", "phase_flow_control")
"""A condition of the user has one of them or both. The first takes the `EpisodeRecord` that has ended, the second the metrics of
the phase so far, by name.
"""


class Condition(Protocol):
    """Asked about each episode of a phase once, in the order in which they end."""

    def episode_flow_control(self, episode: EpisodeRecord, /) -> FlowControl:
        """What follows from this episode, and from those before it."""


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


class MetricCondition:
    """Holds while the mean of the last episodes is within the bound of `rule`; `window` are their values."""

    def __init__(self, rule: Until, window: list[float]) -> None:
        self._rule = rule
        self._window = window

    def episode_flow_control(self, episode: EpisodeRecord, /) -> FlowControl:
        rule, window = self._rule, self._window
        value = measure(episode, rule.metric or "")
        if value is None:
            return "CONTINUE"
        append_bounded(window, value, most=rule.average_over)
        if len(window) < rule.average_over:
            return "CONTINUE"
        average = sum(window) / len(window)
        met = holds(average, at_least=rule.at_least, at_most=rule.at_most)
        return "STOP_SIMULATION" if met else "CONTINUE"


class StepsCondition:
    """Holds when the training episodes have taken `limit` steps."""

    def __init__(self, limit: int, figures: GoalFigures) -> None:
        self._limit = limit
        self._figures = figures

    def episode_flow_control(self, episode: EpisodeRecord, /) -> FlowControl:
        del episode  # its steps are counted already
        return "STOP_SIMULATION" if self._figures.steps >= self._limit else "CONTINUE"


class Goal:
    """The built-in conditions of `until`, asked about each training episode as it ends. `figures`: of the episodes before."""

    def __init__(self, until: Iterable[Until], figures: GoalFigures | None = None) -> None:
        self.figures = figures if figures is not None else GoalFigures()
        self.ended_by = ""
        """The condition that held first."""
        self._until = list(until)
        self._conditions = self._made(self.figures)

    def _made(self, figures: GoalFigures) -> list[tuple[str, Condition]]:
        found: list[tuple[str, Condition]] = []
        windows = iter(figures.windows)
        for number, rule in enumerate(self._until):
            if rule.metric is not None:
                if (window := next(windows, None)) is None:
                    figures.windows.append(window := [])
                found.append((f"until[{number}] ({rule.metric})", MetricCondition(rule, window)))
            elif rule.steps is not None:
                found.append((f"until[{number}] (steps)", StepsCondition(rule.steps, figures)))
        return found

    def would_be(self, records: Iterable[EpisodeRecord]) -> FlowControl:
        """The flow control if these episodes ended now; the state does not change."""
        known, conditions = self.figures, self._conditions
        copied = [window.copy() for window in known.windows]
        self.figures = msgspec.structs.replace(known, windows=copied)
        self._conditions = self._made(self.figures)
        try:
            return strongest([self.episode_flow_control(record) for record in records])
        finally:
            self.figures, self._conditions = known, conditions

    def episode_flow_control(self, episode: EpisodeRecord, /) -> FlowControl:
        """STOP_SIMULATION when a condition holds now, else CONTINUE."""
        if episode.evaluation:
            return "CONTINUE"
        figures = self.figures
        figures.steps += episode.steps
        flow: FlowControl = "CONTINUE"
        for name, condition in self._conditions:
            answer = condition.episode_flow_control(episode)
            if STRENGTH[answer] > STRENGTH[flow]:
                flow, self.ended_by = answer, self.ended_by or name
        figures.reached |= flow != "CONTINUE"
        return flow

    @property
    def is_reached(self) -> bool:
        """Whether a condition has held."""
        return self.figures.reached or any(
            rule.steps is not None and self.figures.steps >= rule.steps for rule in self._until
        )


def append_bounded(window: list[float], value: float, *, most: int) -> None:
    """Appends; drops the first value if there are more than `most`."""
    window.append(value)
    if len(window) > most:
        del window[0]
