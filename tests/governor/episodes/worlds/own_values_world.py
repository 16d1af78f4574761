"""Environments and agents whose arrays stay theirs: they write the next value over the last one, or see what was done to it."""

from pathlib import Path

import numpy as np
from gymnasium.spaces import Box
from walk_world import Agent


class Line:
    """Its observation is one array, and an episode's return how far the actions were from it."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None):
        self.seen = np.random.default_rng(seed).uniform(-1, 1, 2).astype(np.float32)
        self.steps = 0
        return self.seen, {}

    def step(self, action):
        self.steps += 1
        return self.seen, float(abs(action[0] - self.seen[0])), self.steps >= 3, False, {}


class InPlace:
    """Gives its one array each time, and zeroes what it was given to see."""

    def __init__(self, *, observation_space, action_space, seed):
        self.action = np.zeros(1, np.float32)

    def act(self, observation, *, explore):
        self.action[0] = observation[0]
        observation *= 0
        return self.action


class InPlaceMany(InPlace):
    def __init__(self, **more):
        super().__init__(**more)
        self.actions = np.zeros((64, 1), np.float32)

    def act_many(self, observations, *, explore):
        actions = self.actions[: len(observations)]
        actions[:] = observations[:, :1]
        observations *= 0
        return actions


class Ordered(Agent):
    """Notes what it is asked for, and acts by how much it has learned."""

    def act(self, observation, *, explore):
        with Path(self.log).open("a") as log:
            log.write(f"act {self.learned}, ")
        return self.learned % 2

    def learn(self, transition):
        self.learned += 1
        with Path(self.log).open("a") as log:
            log.write(f"learn {transition.observation}, ")
