"""REINFORCE with a baseline: a linear softmax policy that learns from whole episodes, a few at a time.

(Williams, Simple statistical gradient-following algorithms, 1992; the baseline is the linear one of Duan et al.,
Benchmarking deep reinforcement learning for continuous control, 2016; steps are Adam's, Kingma and Ba, 2015.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RIDGE = 1e-3
"""Keeps the fit of the baseline sound while episodes are few and alike."""


class PolicyGradient:
    """An agent for vectors of observations and discrete actions. Play it with one worker: it learns from an episode as a whole.

    Args:
        batch: episodes in one update.
        rate: Adam's step size.
        gamma: discount of rewards to come.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        seed: int,
        *,
        batch: int = 10,
        rate: float = 0.1,
        gamma: float = 0.99,
    ) -> None:
        self.batch, self.rate, self.gamma = batch, rate, gamma
        self.weights: Array = np.zeros((int(action_space.n), observation_space.shape[0] + 1))
        self.mean, self.square, self.updates = np.zeros_like(self.weights), np.zeros_like(self.weights), 0
        self._random = np.random.default_rng(seed)
        self._steps: list[Any] = []
        self._episodes: list[tuple[Array, NDArray[np.int64], Array]] = []

    def act(self, observation: Any, *, explore: bool) -> int:
        """Draws from the policy while exploring, else the likeliest action."""
        scores = self.weights[:, :-1] @ observation + self.weights[:, -1]
        if not explore:
            return int(scores.argmax())
        chances = np.exp(scores - scores.max()).cumsum()
        return int(chances.searchsorted(self._random.random() * chances[-1], side="right"))

    def learn(self, transition: Any) -> None:
        """Keeps the step; the last one of the last episode of a batch moves the policy."""
        if self._steps and not np.array_equal(self._steps[-1].next_observation, transition.observation):
            self._steps = []  # of an episode that failed or was cancelled
        self._steps.append(transition)
        if not (transition.terminated or transition.truncated):
            return
        steps, self._steps = self._steps, []
        to_go, total = np.zeros(len(steps)), 0.0
        for at in range(len(steps) - 1, -1, -1):
            to_go[at] = total = steps[at].reward + self.gamma * total
        observations = np.array([step.observation for step in steps], dtype=np.float64)
        self._episodes.append((observations, np.array([step.action for step in steps]), to_go))
        if len(self._episodes) == self.batch:
            self._update()
            self._episodes = []

    def _update(self) -> None:
        observations, actions, to_go = (np.concatenate(parts) for parts in zip(*self._episodes, strict=True))
        times = np.concatenate([np.arange(len(episode[1])) for episode in self._episodes])
        advantages = to_go - _fitted(observations, times, to_go)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        inputs = np.column_stack([observations, np.ones(len(observations))])
        scores = inputs @ self.weights.T
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        towards = np.eye(len(self.weights))[actions] - chances
        self._climb((towards * advantages[:, None]).T @ inputs / len(inputs))

    def _climb(self, gradient: Array) -> None:
        self.updates += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        mean = self.mean / (1 - 0.9**self.updates)
        square = self.square / (1 - 0.999**self.updates)
        self.weights = self.weights + self.rate * mean / (np.sqrt(square) + 1e-8)

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, the episodes of a batch that is not full, and where the random numbers stand."""
        return {
            "weights": self.weights,
            "mean": self.mean,
            "square": self.square,
            "updates": self.updates,
            "episodes": self._episodes,
            "random": self._random.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        self.weights, self.mean, self.square = (
            np.array(state[name], dtype=np.float64) for name in ("weights", "mean", "square")
        )
        self.updates = int(state["updates"])
        self._episodes = [
            (observations, actions, to_go) for observations, actions, to_go in state["episodes"]
        ]
        self._random.bit_generator.state = state["random"]


def _fitted(observations: Array, times: NDArray[np.int64], to_go: Array) -> Array:
    """The return to go that an observation and its time promise, by least squares."""
    time = times[:, None] / 100
    features = np.column_stack([observations, observations**2, time, time**2, time**3, np.ones(len(time))])
    normal = features.T @ features + RIDGE * np.eye(features.shape[1])
    fitted: Array = features @ np.linalg.solve(normal, features.T @ to_go)
    return fitted
