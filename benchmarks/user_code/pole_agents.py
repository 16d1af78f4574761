"""Agents that keep the pole of CartPole up."""

from __future__ import annotations

from typing import Any

import numpy as np
from user_code.step_agent import TrivialAgent


class Balancing(TrivialAgent):
    """Keeps the pole up for all of the 500 steps, most of the time, by a rule as short as it gets."""

    def act(self, observation: Any, *, explore: bool) -> int:  # noqa: ARG002
        return int(observation[2] + 0.5 * observation[3] + 0.05 * observation[1] > 0)

    def act_many(self, observations: Any, *, explore: bool) -> list[int]:
        return [self.act(observation, explore=explore) for observation in observations]


class Policy(TrivialAgent):
    """What CartPole is solved with (`examples/cartpole`): a linear policy in numpy, here with weights that balance."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._weights = np.array([[0.0, -0.05, -1.0, -0.5, 0.0], [0.0, 0.05, 1.0, 0.5, 0.0]])

    def act(self, observation: Any, *, explore: bool) -> int:  # noqa: ARG002
        return int((self._weights[:, :-1] @ observation + self._weights[:, -1]).argmax())

    def act_many(self, observations: Any, *, explore: bool) -> Any:  # noqa: ARG002
        return (observations @ self._weights[:, :-1].T + self._weights[:, -1]).argmax(axis=1)


class FixedPolicy(Policy):
    """The same, learned already."""

    learn = None  # type: ignore[assignment]
