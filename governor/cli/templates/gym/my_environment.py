"""The environment: a walk over a grid, from one corner to the other, around a pit.

Any class with Gymnasium's `reset` and `step` and its two spaces can stand here.
"""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.spaces import Discrete

MOVES = [(-1, 0), (1, 0), (0, -1), (0, 1)]
"""Up, down, left, right: (rows, columns)."""


class GridWorld(gymnasium.Env[Any, Any]):
    """Observation: the field, from 0 to size² - 1. Action: the number of a move. Reward: -1 for each step, 20 at the goal, -20 in the pit."""

    def __init__(self, size: int = 5) -> None:
        self.size = size
        self.observation_space = Discrete(size * size)
        self.action_space = Discrete(len(MOVES))
        self.row = self.column = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """The first observation of an episode. Draw random numbers from `self.np_random`: its seed is the episode's."""
        super().reset(seed=seed, options=options)
        self.row = self.column = 0
        return self._field(), {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Observation, reward, terminated (the task has ended), truncated (it was cut off), info."""
        rows, columns = MOVES[action]
        self.row = min(max(self.row + rows, 0), self.size - 1)
        self.column = min(max(self.column + columns, 0), self.size - 1)
        if (self.row, self.column) == (self.size // 2, self.size // 2):
            return self._field(), -20.0, True, False, {}
        at_goal = self.row == self.column == self.size - 1
        return self._field(), 20.0 if at_goal else -1.0, at_goal, False, {}

    def _field(self) -> int:
        return self.row * self.size + self.column
