"""The ten-armed testbed of Sutton and Barto, Reinforcement Learning (2018), section 2.3: how much exploring pays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete

if TYPE_CHECKING:
    from governor.episodes import Transition


class TenArms(gymnasium.Env[int, int]):
    """Each episode has ten arms with values of its own; a pull gives the value with noise."""

    def __init__(self, arms: int = 10) -> None:
        self.observation_space = Discrete(1)
        self.action_space = Discrete(arms)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.values = self.np_random.normal(0.0, 1.0, self.action_space.n)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = self.np_random.normal(self.values[action], 1.0)
        best = float(action == int(np.argmax(self.values)))
        return 0, float(reward), False, False, {"best": best}


class EpsilonGreedy:
    """Pulls the arm with the best mean so far, and any arm with probability epsilon. Each episode begins anew."""

    def __init__(
        self, observation_space: Discrete, action_space: Discrete, seed: int, epsilon: float = 0.1
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.epsilon = epsilon
        self.arms = int(action_space.n)

    def begin(self, episode: object) -> None:
        self.means = np.zeros(self.arms)
        self.pulls = np.zeros(self.arms)

    def act(self, observation: int, *, explore: bool) -> int:
        if self.random.random() < self.epsilon:
            return int(self.random.integers(self.arms))
        return int(self.random.choice(np.flatnonzero(self.means == self.means.max())))

    def learn(self, step: Transition) -> None:
        self.pulls[step.action] += 1
        self.means[step.action] += (step.reward - self.means[step.action]) / self.pulls[step.action]
