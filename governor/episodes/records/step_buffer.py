"""The last steps of a vector of environments that step together: an array for each column, made once, and in it a row for each round.

Values go into a row without a check: whoever puts them there has brought them into the form of their spaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from governor.episodes.spaces import storage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from governor.episodes.spaces.specs import Numbers


class StepBuffer:
    """Of `slots` environments. `row` is that of the round under way, and `rounds` when the buffer is full; what is in the rows before it
    is on record, or will be.

    `observations` have one row more: those that a step led to are in the row behind its own, where the next round finds them. `flat` are
    the same, with all numbers of a row side by side.
    `versions`, of the weights, have one value for each row. Rows that were not used have no end.
    """

    def __init__(self, observation: Numbers, action: Numbers, *, slots: int, rounds: int) -> None:
        self.rounds, self.slots = rounds, slots
        self.row = 0
        observed, acted = storage(observation), storage(action)
        self.observations: NDArray[Any] = np.zeros((rounds + 1, slots, *observed[1]), observed[0])
        self.flat = self.observations.reshape(rounds + 1, -1)
        self.actions: NDArray[Any] = np.zeros((rounds, slots, *acted[1]), acted[0])
        self.rewards = np.zeros((rounds, slots))
        self.terminated = np.zeros((rounds, slots), np.bool_)
        self.truncated = np.zeros((rounds, slots), np.bool_)
        self.versions = np.zeros(rounds, np.int64)

    @property
    def columns(self) -> list[NDArray[Any]]:
        """Those with a value for each slot."""
        return [
            self.observations[: self.rounds],
            self.actions,
            self.rewards,
            self.terminated,
            self.truncated,
        ]

    def rewind(self) -> None:
        """Begins at the first row again; its observations are those of the round under way."""
        self.observations[0] = self.observations[self.row]
        self.terminated[:] = self.truncated[:] = False
        self.row = 0
