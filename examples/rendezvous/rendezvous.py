"""Two walkers in a room without corridors: they have met when they stand on the same field. PettingZoo's parallel protocol.

A step costs each of them `STEP`; whoever runs into the wall pays `BUMP` more, alone; both earn `MEET` for meeting. Each sees
where it stands and where the other does, as one number.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Discrete
from pettingzoo import ParallelEnv

STEP, BUMP, MEET = -0.1, -0.2, 1.0
MOVES = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))


class Rendezvous(ParallelEnv[str, int, int]):
    """`size` by `size` fields. An episode is truncated after `patience` steps."""

    metadata: ClassVar[dict[str, Any]] = {"name": "rendezvous"}

    def __init__(self, *, size: int = 4, patience: int = 20) -> None:
        self.size, self.patience = size, patience
        self.possible_agents = ["red", "blue"]
        self.agents: list[str] = []
        self._sight, self._moves = Discrete(size**4), Discrete(len(MOVES))
        self._random = np.random.default_rng()
        self._fields: dict[str, tuple[int, int]] = {}
        self._steps = 0

    def observation_space(self, agent: str) -> Discrete:
        return self._sight

    def action_space(self, agent: str) -> Discrete:
        return self._moves

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, int], dict[str, dict[str, Any]]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._steps = 0
        red, blue = self._random.choice(self.size**2, size=2, replace=False)
        self._fields = {"red": divmod(int(red), self.size), "blue": divmod(int(blue), self.size)}
        return self._seen(), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, int]
    ) -> tuple[dict[str, int], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        players = self.agents
        bumped = {agent: self._walk(agent, *MOVES[actions[agent]]) for agent in players}
        self._steps += 1
        met = self._fields["red"] == self._fields["blue"]
        late = self._steps >= self.patience
        self.agents = [] if met or late else players
        rewards = {agent: STEP + BUMP * bumped[agent] + MEET * met for agent in players}
        return (
            self._seen(),
            rewards,
            dict.fromkeys(players, met),
            dict.fromkeys(players, late and not met),
            {agent: {} for agent in players},
        )

    def _walk(self, agent: str, down: int, right: int) -> bool:
        """Whether there was a wall."""
        row, column = self._fields[agent]
        row, column = row + down, column + right
        if not (0 <= row < self.size and 0 <= column < self.size):
            return True
        self._fields[agent] = row, column
        return False

    def _seen(self) -> dict[str, int]:
        numbers = {agent: row * self.size + column for agent, (row, column) in self._fields.items()}
        fields = self.size**2
        return {
            "red": numbers["red"] * fields + numbers["blue"],
            "blue": numbers["blue"] * fields + numbers["red"],
        }
