"""Those who walk: by lot, or by what they have learned. Each learns for itself; that the other learns too is its weather.

(Independent Q-learning: Tan, Multi-agent reinforcement learning: independent versus cooperative agents, 1993.)
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Stroller:
    """Walks by lot, whatever it sees: what learning is measured against."""

    def __init__(self, observation_space: Any, action_space: Any, seed: int) -> None:
        self.actions = int(action_space.n)
        self._random = np.random.default_rng(seed)

    def act(self, observation: Any, *, explore: bool) -> int:
        return int(self._random.integers(self.actions))


class Learner(Stroller):
    """Tabular Q-learning.

    Args:
        alpha: step size of the update, from 0 to 1.
        gamma: discount of the value of the next observation.
        epsilon: the part of its steps that it takes by lot while exploring.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        seed: int,
        *,
        alpha: float = 0.3,
        gamma: float = 0.95,
        epsilon: float = 0.1,
    ) -> None:
        super().__init__(observation_space, action_space, seed)
        self.alpha, self.gamma, self.epsilon = alpha, gamma, epsilon
        self.values = np.zeros((int(observation_space.n), self.actions))

    def act(self, observation: Any, *, explore: bool) -> int:
        """The action of the highest value, the first one of equals."""
        if explore and self._random.random() < self.epsilon:
            return super().act(observation, explore=explore)
        return int(self.values[observation].argmax())

    def learn(self, transition: Any) -> None:
        """One step of Q-learning. A truncated episode goes on in value, a terminated one does not."""
        future = 0.0 if transition.terminated else self.values[transition.next_observation].max()
        place = transition.observation, transition.action
        self.values[place] += self.alpha * (transition.reward + self.gamma * future - self.values[place])

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, and where the random numbers stand."""
        return {"values": self.values, "random": self._random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        self.values = np.array(state["values"], dtype=np.float64)
        self._random.bit_generator.state = state["random"]
