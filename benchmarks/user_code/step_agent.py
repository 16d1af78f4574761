"""A trivial agent, so that the benchmark measures the way of a step and not what is thought about it."""

from __future__ import annotations

import random
from typing import Any


class TrivialAgent:
    def __init__(self, *, observation_space: Any, action_space: Any, seed: int) -> None:
        self.observation_space = observation_space
        self.choices = range(int(action_space.n))
        self.random = random.Random(seed)
        self.learned = 0

    def act(self, observation: Any, *, explore: bool) -> int:  # noqa: ARG002  # the protocol of an agent
        return self.random.choice(self.choices)

    def act_many(self, observations: Any, *, explore: bool) -> list[int]:  # noqa: ARG002  # as above
        return [self.random.choice(self.choices) for _ in observations]

    def learn(self, transition: Any) -> None:  # noqa: ARG002  # the protocol of an agent
        self.learned += 1

    def state_dict(self) -> dict[str, int]:
        return {"learned": self.learned}
