"""Running figures: what the rules and the result of a phase need of the episodes that have ended, in a size that grows with
the gaps among their indices, not with their number.
"""

from __future__ import annotations

from math import isfinite, sqrt

import msgspec

from governor.index_ranges import IndexRanges
from governor.messages.base import COMPLETE
from governor.messages.curves import Curve


class Spread(msgspec.Struct):
    """Number, mean, population standard deviation (ddof 0), minimum and maximum of values that are added one at a time."""

    count: int = 0
    low: float = 0.0
    high: float = 0.0
    total: float = 0.0
    lost: float = 0.0
    """What rounding has left out of `total` (Neumaier's sum)."""
    center: float = 0.0
    squares: float = 0.0
    """The sum of the squared distances from the mean, which is about `center` (Welford)."""

    def add(self, value: float) -> None:
        self.count += 1
        first = self.count == 1
        self.low = value if first or value < self.low else self.low
        self.high = value if first or value > self.high else self.high
        total = self.total + value
        if abs(self.total) >= abs(value):
            self.lost += (self.total - total) + value
        else:
            self.lost += (value - total) + self.total
        self.total = total
        apart = value - self.center
        self.center += apart / self.count
        self.squares += apart * (value - self.center)

    @property
    def mean(self) -> float:
        """Of at least one value; inf or nan where their sum is too large for a float."""
        return (self.total + self.lost if isfinite(self.total) else self.total) / self.count

    @property
    def deviation(self) -> float:
        """Of at least one value; inf or nan where a square is too large for a float."""
        return sqrt(abs(self.squares / self.count))


class Tally(msgspec.Struct):
    """Episodes that are counted together: how many have `ended`, and the metric of those that are complete."""

    ended: int = 0
    values: Spread = msgspec.field(default_factory=Spread)

    def add(self, value: float | None) -> None:
        """`value` is None for an episode that is not complete."""
        self.ended += 1
        if value is not None:
            self.values.add(value)


class GoalFigures(msgspec.Struct):
    """Of the `until` conditions: the last values of each one with a metric, whether one of these has held, and the steps."""

    windows: list[list[float]] = []
    reached: bool = False
    steps: int = 0


class EvaluationFigures(msgspec.Struct):
    """Of the evaluations. `open`: those of which not all episodes have ended, by number, from 1. `means`: the last ones with
    a result. `in_a_row`: successes; `window`, `peak`, `without_gain`: of the plateau.
    """

    open: dict[int, Tally] = {}
    number: int = 0
    means: dict[int, float] = {}
    best: float | None = None
    in_a_row: int = 0
    window: list[float] = []
    peak: float | None = None
    without_gain: int = 0
    reached: bool = False


class PhaseFigures(msgspec.Struct, kw_only=True):
    """Of all episodes of a phase that have ended, in the order in which they ended. `ended` are their indices; `outcomes`,
    `steps`, `returns`, `by_player` and `last_returns` are of training episodes, `evaluation_outcomes` and `evaluation_steps` of the
    others.
    `returns`, `by_player` and `complete_steps` count those that were terminated or truncated. `seconds` of each worker.
    `curves`: of the metrics of complete episodes, those of evaluations as ``evaluation.NAME`` by the number of the evaluation.
    `bad` have failed, evaluations included, the last `bad_in_a_row` one after the other. `stages`: the checkpoint's metric in the training stages that are not over, by their first index. `metrics`: those of the
    user's code in complete training episodes, by name.
    """

    ended: IndexRanges = msgspec.field(default_factory=IndexRanges)
    outcomes: dict[str, int] = {}
    steps: int = 0
    evaluation_outcomes: dict[str, int] = {}
    evaluation_steps: int = 0
    returns: Spread = msgspec.field(default_factory=Spread)
    complete_steps: int = 0
    by_player: dict[str, Spread] = {}
    metrics: dict[str, Spread] = {}
    last_returns: list[float] = []
    bad: int = 0
    bad_in_a_row: int = 0
    first_bad: str = ""
    seconds: dict[int, float] = {}
    curves: dict[str, Curve] = {}
    stages: dict[int, Tally] = {}
    goal: GoalFigures = msgspec.field(default_factory=GoalFigures)
    evaluations: EvaluationFigures = msgspec.field(default_factory=EvaluationFigures)

    @property
    def trained(self) -> int:
        """Training episodes that have ended."""
        return sum(self.outcomes.values())

    @property
    def evaluated(self) -> int:
        """Evaluation episodes that have ended."""
        return sum(self.evaluation_outcomes.values())

    @property
    def complete(self) -> int:
        """Episodes that ended by themselves."""
        counts = (self.outcomes, self.evaluation_outcomes)
        return sum(outcomes.get(outcome, 0) for outcomes in counts for outcome in COMPLETE)
