"""Evaluation while training pauses: which episodes run when, and the result of an evaluation. Pure.

Rules:
1. A phase is a sequence of stages; a stage begins when all episodes of the previous one have ended. So an evaluation, and
   a checkpoint, use an agent that has learned from exactly the episodes before it, for any number of workers.
2. The episodes that ended determine the current stage, so a later process continues where the record ends.
3. Evaluation episodes have the indices after the last training episode of the phase. Their seeds are a separate stream,
   the same in each evaluation: two evaluations differ only in the agent.
4. An evaluation ends when all of its episodes have ended. If none of them was terminated or truncated it has no result,
   and ends a sequence of successes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from governor.episodes.rules.conditions import append_bounded, holds, measure
from governor.index_ranges import IndexRanges
from governor.messages.figures import EvaluationFigures, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from governor.messages import Checkpoint, EpisodeRecord, Evaluate, FlowControl, StartSimulation

STREAM: Final = 1
"""Number of the stream of seeds for evaluation episodes."""
MEANS: Final = 100
"""Evaluations whose mean is kept: those of the current stages are among them."""


def number_of(index: int, command: StartSimulation) -> int:
    """The evaluation that an episode belongs to, from 1; 0 for none."""
    if command.evaluate is None or index < command.episodes:
        return 0
    return (index - command.episodes) // command.evaluate.episodes + 1


def entropy(index: int, command: StartSimulation) -> tuple[int, ...]:
    """What the seed of an episode depends on, beside the run's."""
    if command.evaluate is None or index < command.episodes:
        return (command.phase, index)
    return (command.phase, (index - command.episodes) % command.evaluate.episodes, STREAM)


@dataclass(frozen=True, slots=True)
class Stage:
    """Episodes that may run concurrently. At its end `trained` training episodes have ended; `keep`: a checkpoint is taken then.
    `evaluation` is the number of the evaluation, 0 for training.
    """

    indexes: range
    trained: int
    evaluation: int = 0
    keep: bool = False


def stage_of(index: int, evaluate: Evaluate | None, checkpoint: Checkpoint | None) -> int:
    """The first index of the training stage that a training episode belongs to."""
    steps = [evaluate.every if evaluate else 0, checkpoint.every or 0 if checkpoint else 0]
    return max(index - index % every if every else 0 for every in steps)


def planned_episodes(episodes: int, evaluate: Evaluate | None) -> int:
    """Those of all stages: so many for training, and the evaluations."""
    return episodes + (episodes // evaluate.every * evaluate.episodes if evaluate is not None else 0)


def stages(
    episodes: int,
    evaluate: Evaluate | None,
    checkpoint: Checkpoint | None,
    *,
    known: IndexRanges | None = None,
) -> Iterator[Stage]:
    """In order. Stages whose episodes are all `known` may be left out at the beginning, but not the last one of these."""
    kept = checkpoint.every if checkpoint is not None else None
    first = _first_unknown(episodes, evaluate, checkpoint, known) if known is not None else 0
    number = first // evaluate.every if evaluate is not None else 0
    while first < episodes:
        steps = [every for every in (evaluate and evaluate.every, kept) if every]
        last = min([episodes, *(first - first % every + every for every in steps)])
        yield Stage(range(first, last), last, keep=bool(kept and last % kept == 0))
        if evaluate is not None and last % evaluate.every == 0:
            begin = episodes + number * evaluate.episodes
            number += 1
            yield Stage(range(begin, begin + evaluate.episodes), last, evaluation=number)
        first = last


def _first_unknown(
    episodes: int, evaluate: Evaluate | None, checkpoint: Checkpoint | None, known: IndexRanges
) -> int:
    """The first index of the training stage before the first stage that has an episode that is not `known`."""
    trained = next(known.missing(range(episodes)), episodes)
    before = stage_of(trained, evaluate, checkpoint) if trained < episodes else episodes
    if evaluate is not None:
        of_evaluations = range(episodes, planned_episodes(episodes, evaluate))
        missing = next(known.missing(of_evaluations), of_evaluations.stop)
        before = min(before, ((missing - episodes) // evaluate.episodes + 1) * evaluate.every)
    return stage_of(max(0, before - 1), evaluate, checkpoint)


class EpisodeSchedule:
    """Assigns the episodes of a phase, stage by stage, without those that ended in an earlier process (`known`). `repeats`: one that
    has begun may be assigned again.
    """

    def __init__(self, planned: Iterable[Stage], *, known: IndexRanges, repeats: bool = False) -> None:
        self._planned = iter(planned)
        self._known = IndexRanges([*known.bounds])
        self._todo: Iterator[int] = iter(())
        self._open = 0
        self._repeats = repeats
        self._again: deque[int] = deque()
        self._following: Stage | None = next(self._planned, None)
        self.stage: Stage | None = None
        self.behind: Stage | None = None
        """The last stage that had ended when this one began."""
        self.advance()

    def next(self) -> int | None:
        """The next episode of this stage; None when all of them have begun."""
        return self._again.popleft() if self._again else next(self._todo, None)

    def again(self, index: int) -> None:
        """Assigns an episode of this stage once more."""
        self._again.append(index)

    @property
    def is_last(self) -> bool:
        """A worker that gets no episode now gets none any more: no stage follows, and none is assigned again."""
        return self._following is None and not (self._repeats and self._open)

    def is_left(self) -> bool:
        """Whether an episode has not been played, though no worker plays any more. It takes that."""
        return self.next() is not None or not self.is_last

    @property
    def is_over(self) -> bool:
        """All episodes have ended; a checkpoint at their end may still be taken."""
        return self.stage is None or (self._following is None and not self._open)

    def ended(self, index: int) -> bool:
        """Whether the stage ends with this episode."""
        if self.stage is None or index not in self.stage.indexes:
            return False
        self._open -= 1
        return self._open == 0

    def advance(self) -> None:
        """Moves on to the next stage with episodes left; the work at the end of this one is done."""
        self.stage, self.behind = None, self.stage
        while (stage := self._following) is not None:
            self._following = next(self._planned, None)
            self._open = self._known.count_missing(stage.indexes)
            if self._open:
                self._todo = self._known.missing(stage.indexes)
                self.stage = stage
                return
            self.behind = stage


class EvaluationResults:
    """The results of the evaluations of a phase, updated with each episode as it ends. `figures`: of the episodes before."""

    def __init__(self, evaluate: Evaluate | None, figures: EvaluationFigures | None = None) -> None:
        self.figures = figures if figures is not None else EvaluationFigures()
        self._evaluate = evaluate
        self.sign = -1.0 if evaluate is not None and _is_downwards(evaluate) else 1.0

    @property
    def means(self) -> dict[int, float]:
        """The mean of the metric, by number of the evaluation, for the last ones with a result."""
        return self.figures.means

    def episode_flow_control(self, record: EpisodeRecord) -> FlowControl:
        """STOP_SIMULATION when the evaluation that it ends is a success, or on a plateau; else CONTINUE."""
        evaluate, figures = self._evaluate, self.figures
        if evaluate is None or not record.evaluation or record.outcome == "cancelled":
            return "CONTINUE"
        tally = figures.open.setdefault(record.evaluation, Tally())
        tally.add(measure(record, evaluate.metric))
        if tally.ended < evaluate.episodes:
            return "CONTINUE"
        del figures.open[record.evaluation]
        if not tally.values.count:
            figures.in_a_row = 0
            return "CONTINUE"
        value = tally.values.mean
        self._keep(record.evaluation, value)
        over = self._is_success(value, evaluate) | self._is_plateau(value, evaluate)
        figures.reached |= over
        return "STOP_SIMULATION" if over else "CONTINUE"

    def _keep(self, number: int, value: float) -> None:
        figures = self.figures
        figures.number += 1
        figures.means[number] = value
        if len(figures.means) > MEANS:
            del figures.means[min(figures.means)]
        if figures.best is None or self.sign * value > self.sign * figures.best:
            figures.best = value

    @property
    def metrics(self) -> dict[str, float]:
        figures = self.figures
        if self._evaluate is None or figures.best is None:
            return {}
        name = f"evaluation_{self._evaluate.metric}"
        return {
            "evaluations": figures.number,
            f"{name}_mean": figures.means[max(figures.means)],
            f"{name}_best": figures.best,
        }

    def _is_success(self, value: float, evaluate: Evaluate) -> bool:
        if evaluate.at_least is None and evaluate.at_most is None:
            return False
        met = holds(value, at_least=evaluate.at_least, at_most=evaluate.at_most)
        self.figures.in_a_row = self.figures.in_a_row + 1 if met else 0
        return self.figures.in_a_row >= evaluate.consecutive

    def _is_plateau(self, value: float, evaluate: Evaluate) -> bool:
        plateau, figures = evaluate.plateau, self.figures
        if plateau is None:
            return False
        append_bounded(figures.window, self.sign * value, most=plateau.window)
        if len(figures.window) < plateau.window:
            return False
        smooth = sum(figures.window) / len(figures.window)
        if figures.peak is None or smooth > figures.peak + plateau.min_delta:
            figures.peak, figures.without_gain = smooth, 0
        else:
            figures.without_gain += 1
        return figures.without_gain >= plateau.patience


def _is_downwards(evaluate: Evaluate) -> bool:
    return evaluate.at_most is not None or (
        evaluate.plateau is not None and evaluate.plateau.direction == "min"
    )
