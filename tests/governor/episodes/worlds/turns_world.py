"""Environments whose players take turns (PettingZoo's AEC), with action masks, and their agents, also those that misbehave."""

import os
import time
from functools import cache

import numpy as np
from gymnasium.spaces import Discrete
from parallel_world import Always
from pettingzoo import AECEnv
from pettingzoo.utils import wrappers
from walk_world import first_time

ANN, BEN, CAT = "ann", "ben", "cat"


class Nim(AECEnv):
    """Who takes the last of the stones wins 1, the others lose 1. A player takes 1 to 3; `info` has the mask.

    Each step gives 0.125 to who acts and 0.25 to all others. With `late`, cat joins after so many steps; `quits` is a player that leaves after its first move.
    """

    metadata = {"name": "nim", "is_parallelizable": False}  # noqa: RUF012  # as PettingZoo has it
    render_mode = None

    def __init__(self, *, stones=7, players=(ANN, BEN), late=0, quits="", fault="", at=2, flag=""):
        self.possible_agents = [*players, *([CAT] if late else [])]
        self.first, self.stones, self.late, self.quits = list(players), stones, late, quits
        self.fault, self.at, self.flag = fault, at, flag

    @cache  # noqa: B019  # PettingZoo wants the same object each time
    def observation_space(self, agent):
        return Discrete(100)

    @cache  # noqa: B019
    def action_space(self, agent):
        return Discrete(4)

    def reset(self, seed=None, options=None):
        self.agents = list(self.first)
        self.left = self.stones + int(np.random.default_rng(seed).integers(3))
        self.steps = 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.agent_selection = self.agents[0]
        self._note()
        if self.fault == "reset":
            raise RuntimeError("no stones")
        if self.fault == "nobody":
            self.agents = []

    def _note(self):
        mask = np.array([0, *(self.left >= take for take in (1, 2, 3))], np.int8)
        if self.fault == "mask":
            mask = mask[:2]
        self.infos = {agent: {"action_mask": mask, "left": self.left} for agent in self.agents}

    def observe(self, agent):
        return np.int64(self.left)

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            if self.fault == "undead":
                return None
            return self._was_dead_step(action)
        self.steps += 1
        if self.steps == self.at and self.fault and first_time(self.flag):
            self.go_wrong()
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.left -= max(0, action)
        if self.steps == self.late:
            self.agents.append(CAT)
            for values, nothing in (
                (self.rewards, 0.0),
                (self._cumulative_rewards, 0.0),
                (self.terminations, False),
                (self.truncations, False),
            ):
                values[CAT] = nothing
        for other in self.agents:
            self.rewards[other] = 0.125 if other == agent else 0.25
        following = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        if self.left <= 0:
            for other in self.agents:
                self.rewards[other] += 1.0 if other == agent else -1.0
                self.terminations[other] = True
        elif agent == self.quits:
            self.truncations[agent] = True
        self.agent_selection = following
        self._accumulate_rewards()
        self._note()
        self._deads_step_first()
        return None

    def go_wrong(self):
        match self.fault:
            case "step":
                raise ValueError("a stone\nbroke")
            case "sleep":
                time.sleep(30)
            case "exit":
                os._exit(3)
            case "nan":
                self._cumulative_rewards[BEN] = float("nan")
            case "vanish":
                self.agents.remove(BEN)


class Forgetful(Nim):
    """Its `rewards` are those of the first step for ever: `last()` alone is right."""

    def step(self, action):
        super().step(action)
        self.rewards = dict.fromkeys(self.agents, 0.25)


class Illegal(Nim):
    """What PettingZoo does at an illegal move: all are out."""

    def __new__(cls, **params):
        return wrappers.OrderEnforcingWrapper(
            wrappers.AssertOutOfBoundsWrapper(
                wrappers.TerminateIllegalWrapper(Nim(**params), illegal_reward=-5)
            )
        )


class Masked:
    """One player whose `info` has a mask (as Taxi); `length` steps, and only action `step % 3` is allowed."""

    def __init__(self, *, length=4, without=()):
        self.observation_space, self.action_space = Discrete(100), Discrete(3)
        self.length, self.without = length, without

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return 0, self.info()

    def info(self):
        self.mask = np.zeros(3, np.int8)
        if self.steps in self.without:
            return {}
        self.mask[self.steps % 3] = 1
        return {"action_mask": self.mask}

    def step(self, action):
        reward = 1.0 if action == self.steps % 3 else -1.0
        self.mask[:] = 9  # an agent that kept it would see
        self.steps += 1
        return self.steps, reward, self.steps >= self.length, False, self.info()


class Legal(Always):
    """The first allowed action; an action that is never allowed, if there is no mask."""

    def __init__(self, *, nothing=0, **more):
        super().__init__(**more)
        self.nothing = nothing

    def act(self, observation, *, explore, action_mask):
        if action_mask is None:
            return self.nothing
        assert action_mask.dtype == np.int8
        return int(action_mask.argmax())


class ByLegalLot(Always):
    """A random allowed action, of the space's own generator; it notes what each player learns."""

    def __init__(self, *, flag="", **more):
        super().__init__(**more)
        self.flag = flag

    def act(self, observation, *, explore, player, action_mask):
        if self.fault == "act":
            raise KeyError(player)
        if self.fault == "exit" and first_time(self.flag):
            os._exit(3)
        return self.space.sample(action_mask)

    def learn(self, transition, player):
        super().learn(transition)
        self.note(player, transition)

    def note(self, player, transition):
        if player is not None:
            super().note(player, transition)

    def metrics(self):
        return {"learned": self.learned}


class LegalMany(Legal):
    """Also many at once."""

    def act_many(self, observations, *, explore, action_mask):
        if action_mask is None:
            return [self.nothing] * len(observations)
        assert action_mask.shape == (len(observations), 3)
        return action_mask.argmax(axis=1)
