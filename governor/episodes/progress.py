"""An episode while it is played: how far it is, and its record if it ended now."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from governor.failures import traceback_of
from governor.messages import EpisodeRecord

if TYPE_CHECKING:
    from governor.messages import EpisodeOutcome


@dataclass(slots=True, eq=False)
class EpisodeProgress:
    """`number` is the slot among all that the phase plays at once, `index` that of the episode in the phase, negative without
    one. `began` and `deadline` are in seconds on the monotonic clock. `value` is the undiscounted return so far, `values` the
    returns by player.
    """

    number: int
    index: int = -1
    seed: int = 0
    began: float = 0.0
    deadline: float = inf
    value: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    steps: int = 0

    def record(self, outcome: EpisodeOutcome, reason: str = "") -> EpisodeRecord:
        """The record, if it ended now."""
        return EpisodeRecord(
            index=self.index,
            worker=self.number,
            seed=self.seed,
            outcome=outcome,
            value=self.value,
            steps=self.steps,
            seconds=monotonic() - self.began,
            reason=str(reason),
            values=dict(self.values),
            traceback=traceback_of(reason),
        )
