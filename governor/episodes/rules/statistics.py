"""The running figures of a phase, and its metrics, `PartEnded.metrics`, computed from them.

`return_*` and `steps_mean` are over the terminated and truncated episodes, and absent if there is none;
`return_mean.<player>` is over those in which the player took part. Of each metric of the user there are `_mean`, `_min` and
`_max` over the episodes that have it, and `_nonfinite`, how many values were NaN or infinite. The standard deviation is that of the population
(ddof 0), as in Gymnasium's and Trinity's tables.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, get_args

from governor.episodes.metrics import NONFINITE
from governor.episodes.rules.conditions import Goal, append_bounded, measure, strongest
from governor.episodes.rules.evaluation import EvaluationResults, planned_episodes, stage_of
from governor.episodes.rules.failures import FailureBounds
from governor.messages import BAD, COMPLETE, EpisodeOutcome
from governor.messages.curves import CURVES, EVALUATION, Curve
from governor.messages.figures import PhaseFigures, Spread, Tally

if TYPE_CHECKING:
    from governor.episodes.rules.conditions import Condition
    from governor.messages import EpisodeRecord, FlowControl, StartSimulation

LAST_RETURNS: Final = 50
"""Episodes over which the status of a run averages the return."""
MOST_METRICS: Final = 256
"""Names of the user's metrics in a phase; further ones are on record in the episodes alone."""


def bounds_of(command: StartSimulation, figures: PhaseFigures) -> FailureBounds:
    """The bounds of the failed episodes of a phase, after those of `figures`."""
    planned = planned_episodes(command.episodes, command.evaluate)
    failed, in_a_row = figures.bad, figures.bad_in_a_row
    return FailureBounds(command.failures, planned, "episodes", failed=failed, in_a_row=in_a_row)


class PhaseStatistics:
    """Updates `figures`, the running figures of the phase of `command`, with each episode as it ends."""

    def __init__(self, command: StartSimulation, figures: PhaseFigures | None = None) -> None:
        self.figures = figures if figures is not None else PhaseFigures()
        self.goal = Goal(command.until, self.figures.goal)
        self.evaluations = EvaluationResults(command.evaluate, self.figures.evaluations)
        self._conditions: tuple[Condition, ...] = (self.goal, self.evaluations)
        self._command = command
        self.bounds = bounds_of(command, self.figures)

    def add(self, record: EpisodeRecord) -> FlowControl:
        """The flow control that follows from a stored episode."""
        figures = self.figures
        figures.ended.add(record.index)
        figures.seconds[record.worker] = figures.seconds.get(record.worker, 0.0) + record.seconds
        self.bounds.add(record.outcome)
        if record.outcome in BAD:
            figures.bad, figures.bad_in_a_row = self.bounds.failed, self.bounds.in_a_row
            figures.first_bad = (
                figures.first_bad or f"episode {record.index}: {record.reason or record.outcome}"
            )
        elif record.outcome in COMPLETE:
            figures.bad_in_a_row = 0
        outcomes = figures.evaluation_outcomes if record.evaluation else figures.outcomes
        outcomes[record.outcome] = outcomes.get(record.outcome, 0) + 1
        if record.evaluation:
            figures.evaluation_steps += record.steps
        else:
            self._add_training(figures, record)
        if record.outcome in COMPLETE:
            self._add_to_curves(figures, record)
        return strongest(condition.episode_flow_control(record) for condition in self._conditions)

    def _add_training(self, figures: PhaseFigures, record: EpisodeRecord) -> None:
        is_complete = record.outcome in COMPLETE
        figures.steps += record.steps
        append_bounded(figures.last_returns, record.value, most=LAST_RETURNS)
        if is_complete:
            figures.returns.add(record.value)
            figures.complete_steps += record.steps
            for player, value in record.values.items():
                figures.by_player.setdefault(player, Spread()).add(value)
            self._add_metrics(figures, record)
        if self._command.checkpoint is not None:
            self._add_to_stage(record, measure(record, self._command.checkpoint.metric))

    @staticmethod
    def _add_metrics(figures: PhaseFigures, record: EpisodeRecord) -> None:
        for name, value in record.metrics.items():
            spread = figures.metrics.get(name)
            if spread is None:
                if len(figures.metrics) >= MOST_METRICS:
                    continue
                spread = figures.metrics[name] = Spread()
            spread.add(value)

    @staticmethod
    def _add_to_curves(figures: PhaseFigures, record: EpisodeRecord) -> None:
        """Time is that of the worker, so an interruption of the run does not count."""
        prefix, key = (EVALUATION, record.evaluation) if record.evaluation else ("", record.index)
        values: dict[str, float] = {"return": record.value, "steps": record.steps}
        for player, value in record.values.items():
            values[f"return.{player}"] = value
        if record.metrics:
            values |= {name: value for name, value in record.metrics.items() if name not in values}
        at = figures.seconds[record.worker]
        for name, value in values.items():
            if (curve := _curve_of(figures, prefix + name)) is not None:
                curve.add(value, episode=key, step=figures.steps, at=at)
        for name in record.metrics:
            finite = name.removesuffix(NONFINITE)
            if finite not in values and (curve := _curve_of(figures, prefix + finite)) is not None:
                curve.unusable += 1

    def _add_to_stage(self, record: EpisodeRecord, value: float | None) -> None:
        """The first episode of a stage tells that the checkpoints of the whole ones before have been taken."""
        stages, command = self.figures.stages, self._command
        first = stage_of(record.index, command.evaluate, command.checkpoint)
        if first not in stages:
            following = sorted([*stages, first])
            for begun, end in pairwise(following):
                if begun in stages and stages[begun].ended >= end - begun:
                    del stages[begun]
            stages[first] = Tally()
        stages[first].add(value)

    @property
    def ended_by(self) -> str:
        """The condition that held first."""
        return self.goal.ended_by or ("evaluate" if self.figures.evaluations.reached else "")

    @property
    def flow(self) -> FlowControl:
        """The strongest flow control that an episode has led to."""
        over = self.goal.is_reached or self.figures.evaluations.reached
        return "STOP_SIMULATION" if over else "CONTINUE"


def summarize(figures: PhaseFigures, *, steps_per_second: float | None = None) -> dict[str, float]:
    """`steps_per_second` is over the time during which these episodes were played, idle time included."""
    metrics: dict[str, float] = {
        "episodes_ended": figures.trained,
        "steps_total": figures.steps,
        **{
            f"episodes_{outcome}": figures.outcomes[outcome]
            for outcome in get_args(EpisodeOutcome)
            if outcome in figures.outcomes
        },
    }
    returns = figures.returns
    if returns.count:
        metrics |= {
            "return_mean": returns.mean,
            "return_std": returns.deviation,
            "return_min": returns.low,
            "return_max": returns.high,
            "steps_mean": figures.complete_steps / returns.count,
        }
    metrics |= {f"return_mean.{player}": spread.mean for player, spread in figures.by_player.items()}
    if steps_per_second is not None:
        metrics["steps_per_second"] = steps_per_second
    return _of_user(figures, ours=metrics) | metrics


def _of_user(figures: PhaseFigures, *, ours: dict[str, float]) -> dict[str, float]:
    """Without those of a name that has figures of ours."""
    found: dict[str, float] = {}
    for name, spread in figures.metrics.items():
        if name.endswith(NONFINITE):
            found[f"{name.removesuffix(NONFINITE)}_nonfinite"] = spread.total
        elif f"{name}_mean" not in ours:
            found |= {f"{name}_mean": spread.mean, f"{name}_min": spread.low, f"{name}_max": spread.high}
    return found


def _curve_of(figures: PhaseFigures, name: str) -> Curve | None:
    """None if there are too many."""
    curve = figures.curves.get(name)
    if curve is None and len(figures.curves) < CURVES:
        curve = figures.curves[name] = Curve()
    return curve
