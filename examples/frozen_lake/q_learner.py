"""Tabular Q-learning with optimistic initial values.

Every action is worth as much as the best return until it has been tried, so the greedy policy itself explores, and
no decaying epsilon is needed: on FrozenLake without slipping the goal is found within some dozens of episodes.
(Sutton and Barto, Reinforcement Learning, 2nd edition, sections 2.6 and 6.5.)
"""

from __future__ import annotations

from typing import Any

import numpy as np


class QLearner:
    """An agent for discrete observations and actions.

    Args:
        alpha: step size of the update, from 0 to 1.
        gamma: discount of the value of the next observation.
        optimism: the initial value of every action; at least the highest return that can be reached.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        seed: int,
        *,
        alpha: float = 0.5,
        gamma: float = 0.99,
        optimism: float = 1.0,
    ) -> None:
        self.alpha = alpha
        self.gamma = gamma
        self.values = np.full((int(observation_space.n), int(action_space.n)), optimism, dtype=np.float64)
        self._random = np.random.default_rng(seed)

    def act(self, observation: Any, *, explore: bool) -> int:
        """The action of the highest value. Equal values are decided by lot while exploring, else the first one wins."""
        row = self.values[int(observation)]
        if not explore:
            return int(np.argmax(row))
        return int(self._random.choice(np.flatnonzero(row == row.max())))

    def learn(self, transition: Any) -> None:
        """One step of Q-learning. A truncated episode goes on in value, a terminated one does not."""
        future = 0.0 if transition.terminated else self.values[int(transition.next_observation)].max()
        target = float(transition.reward) + self.gamma * future
        place = int(transition.observation), int(transition.action)
        self.values[place] += self.alpha * (target - self.values[place])

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, and where the random numbers stand."""
        return {"values": self.values, "random": self._random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        self.values = np.array(state["values"], dtype=np.float64)
        self._random.bit_generator.state = state["random"]
