"""An environment whose observations and actions have parts, each kind of space three deep, and an agent for any spaces."""

from copy import deepcopy
from functools import partial
from itertools import cycle

import gymnasium
import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array


class Words(gymnasium.Space):
    """Texts with a rule of their own, as MiniGrid's missions."""

    def __init__(self):
        super().__init__(dtype=str)

    def sample(self, mask=None, probability=None):
        return f"go to room {self.np_random.integers(9)}"

    def contains(self, x):
        return isinstance(x, str) and x.startswith("go to")


SIMPLE = (
    Discrete(3, start=-1),
    Box(-1, 1, (2, 3)),
    MultiDiscrete([2, 3]),
    MultiBinary((2, 2)),
    Text(5, min_length=0),
)


def three_deep(*simple):
    """Each kind of space, around these in turn."""
    parts = cycle(map(deepcopy, simple * 20))
    inner = partial(next, parts)
    return Dict(
        [
            ("tuple", Tuple([inner(), Dict(inside=Tuple([inner(), inner()]))])),
            ("one", OneOf([inner(), Tuple([inner(), OneOf([inner(), inner()])])])),
            ("many", Sequence(Tuple([Sequence(inner()), inner()]))),
            ("stacked", Sequence(Dict(at=inner(), more=Tuple([inner()])), stack=True)),
            ("graph", Graph(Dict(node=Tuple([inner()])), Tuple([inner(), Discrete(3)]))),
            (5, Graph(Box(0, 1, (2,)), None)),
            ("flat", Tuple(map(deepcopy, simple))),
        ]
    )


OBSERVED = Dict(world=three_deep(*SIMPLE), words=Words())
ACTED = {
    "parts": Dict([("steer", Box(-1, 1, (2,))), ("gear", Discrete(3)), ("more", Tuple([MultiBinary(2), Dict(a=MultiDiscrete([2, 3]))]))]),
    "tuple": Tuple([Discrete(3), Box(-1, 1, (2,))]),
    "text": Text(3),
    "any": three_deep(*SIMPLE),
}  # fmt: skip


def checksum(value):
    """Of all numbers and texts of an action, in its order."""
    if isinstance(value, dict):
        return checksum(tuple(value.values()))
    if isinstance(value, tuple):
        return sum((1 + place) * checksum(one) for place, one in enumerate(value))
    if isinstance(value, str):
        return sum(map(ord, value)) / 128
    return 0.0 if value is None else float(np.sum(value))


class Nested(gymnasium.Env):
    """An episode's observations are samples of the space with its seed. The reward is the checksum of the action."""

    def __init__(self, *, actions="parts", length=5, fault=""):
        self.observation_space = deepcopy(OBSERVED)
        self.action_space = ACTED[actions]
        self.length, self.fault = length, fault

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        observation = self.observation_space.sample()
        if self.fault and self.steps == 2:
            observation["world"]["tuple"] = (7, observation["world"]["tuple"][1])
        return observation, checksum(action), self.steps >= self.length, False, {}

    def expected(self, seed):
        """The observations of an episode, the last one included."""
        first, _ = self.reset(seed=seed)
        return [first, *(self.observation_space.sample() for _ in range(self.length))]


class Pair:
    """Two players, of which red leaves after two steps, and blue after four."""

    metadata = {"name": "pair", "is_parallelizable": True}  # noqa: RUF012  # as PettingZoo has it

    def __init__(self, *, fault=False):
        self.possible_agents = ["red", "blue"]
        self.fault = fault
        self.observed = {"red": Text(4), "blue": deepcopy(OBSERVED)}
        self.acted = {"red": ACTED["tuple"], "blue": ACTED["parts"]}

    def observation_space(self, agent):
        return self.observed[agent]

    def action_space(self, agent):
        return self.acted[agent]

    def reset(self, *, seed=None, options=None):
        for space in self.observed.values():
            space.seed(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        return self.seen(), {}

    def seen(self):
        return {agent: self.observed[agent].sample() for agent in self.agents}

    def step(self, actions):
        assert all(self.acted[agent].contains(action) for agent, action in actions.items())
        self.steps += 1
        seen, over = self.seen(), {agent: self.steps >= {"red": 2, "blue": 4}[agent] for agent in self.agents}
        if self.fault:
            seen["blue"]["words"] = 3
        rewards = {agent: checksum(actions[agent]) for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        return seen, rewards, over, dict.fromkeys(over, False), {}

    def expected(self, seed):
        """What is seen in an episode, the last one included."""
        seen = [self.reset(seed=seed)[0]]
        for step in range(4):
            seen.append(self.seen())
            self.agents = ["red", "blue"] if step < 1 else ["blue"]
        return seen


class Player:
    """Acts at random; it looks at all that it gets. With `bad` its second action has a part that does not fit."""

    def __init__(self, *, observation_space, action_space, seed, bad=False):
        self.observed, self.acted, self.bad = observation_space, action_space, bad
        self.calls = self.learned = 0
        self.acted.seed(seed)

    def act(self, observation, *, explore):
        assert self.observed.contains(observation), observation
        self.calls += 1
        if self.bad and self.calls == 2:
            return {**self.acted.sample(), "gear": 9}
        return self.acted.sample()

    def learn(self, transition):
        assert self.observed.contains(transition.observation)
        assert self.observed.contains(transition.next_observation)
        assert self.acted.contains(transition.action)
        assert checksum(transition.action) == transition.reward
        self.learned += 1

    def state_dict(self):
        return {"learned": self.learned}

    def load_state_dict(self, state):
        self.learned = state["learned"]


class Many(Player):
    """Returns a batch of actions."""

    def act_many(self, observations, *, explore):
        actions = self.actions(observations, explore=explore)
        return concatenate(self.acted, actions, create_empty_array(self.acted, len(actions)))

    def actions(self, observations, *, explore):
        rows = len(observations["words"])
        assert batch_space(self.observed, rows).contains(observations), observations
        return [Player.act(self, one, explore=explore) for one in self.rows(observations, rows)]

    def rows(self, observations, rows):
        return [self.observed.sample() for _ in range(rows)]


class Listed(Many):
    """Returns one action for each row, in a list."""

    def act_many(self, observations, *, explore):
        return self.actions(observations, explore=explore)
