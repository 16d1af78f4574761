"""Environments of several players and their agents, also those that misbehave."""

import json
import time
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec
from walk_world import first_time

RED, BLUE = "red", "blue"


class Pair(ParallelEnv):
    """Red plays 3 steps and blue 5; each earns its action, blue twice as much."""

    metadata = {"name": "pair", "is_parallelizable": True}  # noqa: RUF012  # as PettingZoo has it
    render_mode = None
    weights = {RED: 1.0, BLUE: 2.0}  # noqa: RUF012

    def __init__(self, *, red=3, blue=5, cut=(), fault="", at=2, flag=""):
        self.possible_agents = [RED, BLUE]
        self.lengths = {RED: red, BLUE: blue}
        self.cut, self.fault, self.at, self.flag = cut, fault, at, flag

    def observation_space(self, agent):
        return Discrete(1000)

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.start = int(np.random.default_rng(seed).integers(100))
        self.steps = 0
        if self.fault == "reset":
            raise RuntimeError("no floor")
        if self.fault == "reset_blue":
            return {RED: 0}, {}
        if self.fault == "nobody":
            self.agents = []
        if self.fault == "stranger":
            self.agents.append("green")
        return self.seen(), {agent: {} for agent in self.agents}

    def seen(self):
        return dict.fromkeys(self.agents, self.start + self.steps)

    def step(self, actions):
        assert list(actions) == self.agents
        self.steps += 1
        seen = self.seen()
        over = {agent: self.steps >= self.lengths[agent] for agent in self.agents}
        rewards = {agent: self.weights[agent] * actions[agent] for agent in self.agents}
        terminated = {agent: over[agent] and agent not in self.cut for agent in self.agents}
        truncated = {agent: over[agent] and agent in self.cut for agent in self.agents}
        infos = {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        told = seen, rewards, terminated, truncated, infos
        if self.steps == self.at and self.fault and first_time(self.flag):
            return self.go_wrong(*told)
        return told

    def go_wrong(self, seen, rewards, terminated, truncated, infos):
        match self.fault:
            case "step":
                raise ValueError("leg\nbroken")
            case "nan":
                rewards[BLUE] = float("nan")
            case "no_reward":
                del rewards[BLUE]
            case "no_end":
                del truncated[RED]
            case "list":
                seen = [1, 2]
            case "four":
                return seen, rewards, terminated, truncated
            case "gone":
                self.agents = [RED]
            case "slow":
                time.sleep(0.3)
            case "sleep":
                time.sleep(30)
        return seen, rewards, terminated, truncated, infos


class Undead(Pair):
    """Its `agents` stay as they are."""

    def step(self, actions):
        self.agents = list(actions)
        told = super().step(actions)
        self.agents = list(self.possible_agents)
        return told


class Overwrites(Pair):
    """Its observations are written over and over, the actions too."""

    def observation_space(self, agent):
        return Box(-9, 9, (2,), np.float32)

    action_space = observation_space

    def seen(self):
        self.kept = getattr(self, "kept", np.zeros(2, np.float32))
        self.kept[:] = self.steps
        return dict.fromkeys(self.agents, self.kept)

    def step(self, actions):
        told = super().step(dict.fromkeys(actions, 0))
        for action in actions.values():
            action[:] = 9
        return told


class NanBox(Overwrites):
    def seen(self):
        return {**super().seen(), BLUE: np.array([0, np.nan], np.float32)}


class Uneven(Pair):
    def observation_space(self, agent):
        return Discrete(1000 if agent == RED else 999)


class Spaceless(Pair):
    def action_space(self, agent):
        return {RED: Discrete(2)}[agent]


class Numbered(Pair):
    def __init__(self):
        super().__init__()
        self.possible_agents = [0, 1]


class LikeAColumn(Pair):
    def __init__(self):
        super().__init__()
        self.possible_agents = ["phase", "step"]


class Nobody(Pair):
    def __init__(self):
        super().__init__()
        self.possible_agents = []


def there_and_back(**params):
    """The same environment as a PettingZoo wrapper of a wrapper; a function, as `parallel_env` is one."""
    return aec_to_parallel(parallel_to_aec(Pair(**params)))


class Always:
    """Always 1; notes what it was told, by whom it is asked. Its parameters choose what goes wrong."""

    built = []  # noqa: RUF012  # of the whole process

    def __init__(self, *, observation_space, action_space, seed, log="", fault=""):
        self.space, self.log, self.fault, self.learned = action_space, log, fault, 0
        self.built.append(self)

    def act(self, observation, *, explore):
        match self.fault:
            case "act":
                raise KeyError("observation")
            case "bad_action":
                return 7
            case "sleep":
                time.sleep(30)
        return 1 if isinstance(self.space, Discrete) else np.ones(self.space.shape, np.float32)

    def learn(self, transition):
        if self.fault == "learn":
            raise ZeroDivisionError
        self.learned += 1
        self.note(None, transition)

    def note(self, player, transition):
        if self.log:
            told = {
                name: np.asarray(getattr(transition, name)).tolist()
                for name in transition.__struct_fields__[:6]
            }
            with Path(self.log).open("a") as file:
                print(json.dumps({"player": player, **told}), file=file)

    def state_dict(self):
        return {"learned": self.learned}

    def load_state_dict(self, state):
        self.learned = state["learned"]


class Told(Always):
    """It has the parameter `player`: red does 1 and blue 0."""

    def act(self, observation, *, explore, player):
        return int(player == RED)

    def learn(self, transition, player):
        self.note(player, transition)


class ByLot(Always):
    def __init__(self, *, seed, **more):
        super().__init__(seed=seed, **more)
        self.rng = np.random.default_rng(seed)

    def act(self, observation, *, explore):
        return int(self.rng.integers(2))

    def state_dict(self):
        return {"learned": self.learned, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state):
        self.learned, self.rng.bit_generator.state = state["learned"], state["rng"]


class Zeroes(Always):
    """What it sees, once it has seen it."""

    def act(self, observation, *, explore):
        observation *= 0
        return super().act(observation, explore=explore)
