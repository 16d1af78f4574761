"""The agent: a table of values, learned by Q-learning with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np


class QAgent:
    """For discrete observations and actions. `epsilon`: how often it explores, `alpha`: the step size, `gamma`: the discount."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        seed: int,
        *,
        epsilon: float = 0.1,
        alpha: float = 0.2,
        gamma: float = 0.99,
    ) -> None:
        self.epsilon, self.alpha, self.gamma = epsilon, alpha, gamma
        self.values = np.zeros((observation_space.n, action_space.n))
        self.random = np.random.default_rng(seed)

    def act(self, observation: int, *, explore: bool) -> int:
        """The best action; in training (`explore`) a random one now and then."""
        if explore and self.random.random() < self.epsilon:
            return int(self.random.integers(self.values.shape[1]))
        return int(np.argmax(self.values[observation]))

    def learn(self, step: Any) -> None:
        """One step of training: `observation`, `action`, `reward`, `next_observation`, `terminated`, `truncated`."""
        future = 0.0 if step.terminated else self.gamma * self.values[step.next_observation].max()
        error = step.reward + future - self.values[step.observation, step.action]
        self.values[step.observation, step.action] += self.alpha * error

    def state_dict(self) -> dict[str, Any]:
        """All that it has learned: kept over crashes, restarts, and for later phases."""
        return {"values": self.values, "random": self.random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        self.values = state["values"]
        self.random.bit_generator.state = state["random"]
