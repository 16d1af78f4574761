"""An episode while it is played: how far it is, and its record if it ended now."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from governor.episodes.metrics import Reported
from governor.failures import traceback_of
from governor.messages import EpisodeRecord

if TYPE_CHECKING:
    from governor.episodes.info import InfoFigures
    from governor.messages import EpisodeOutcome


@dataclass(slots=True, eq=False)
class EpisodeProgress:
    """`number` is the slot among all that the phase plays at once, `index` that of the episode in the phase, negative without
    one. `began` and `deadline` are in seconds on the monotonic clock. `value` is the undiscounted return so far, `values` the
    returns by player. `info` are the figures of the environment's infos, None if none are wanted; `reported` is what user code
    has reported.
    """

    number: int
    index: int = -1
    seed: int = 0
    began: float = 0.0
    deadline: float = inf
    value: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    info: InfoFigures | None = None
    reported: Reported = field(default_factory=Reported)

    @property
    def worker(self) -> int:
        """The number that the record names."""
        return self.number

    def record(self, outcome: EpisodeOutcome, reason: str = "") -> EpisodeRecord:
        """The record, if it ended now."""
        return EpisodeRecord(
            index=self.index,
            worker=self.worker,
            seed=self.seed,
            outcome=outcome,
            value=self.value,
            steps=self.steps,
            seconds=monotonic() - self.began,
            reason=str(reason),
            values=dict(self.values),
            traceback=traceback_of(reason),
            metrics=self.figures(),
        )

    def figures(self) -> dict[str, float]:
        """The numbers of the user's code. A report counts rather than a key of `info` of that name."""
        found = {} if self.info is None else self.info.figures()
        return found | self.reported.figures() if self.reported.sums else found
