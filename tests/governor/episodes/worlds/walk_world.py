"""Environments and agents as users write them, also those that misbehave."""

import ctypes
import os
import time
from pathlib import Path

import gymnasium
import numpy as np
import psutil
from gymnasium.spaces import Box, Dict, Discrete


def first_time(flag):
    """Without a flag file it is always the first time."""
    path = Path(flag or "/nonexistent/flag")
    if path.exists():
        return False
    if flag:
        path.touch()
    return True


class Walk:
    """Steps of the action's size; the return of an episode is the number of its steps with action 1."""

    observation_space = Discrete(1000)
    action_space = Discrete(2)

    def __init__(self, *, length=5, fault="", at=3, flag=""):
        self.length, self.fault, self.at, self.flag = length, fault, at, flag
        self.steps = 0

    def reset(self, *, seed=None):
        if self.fault == "reset":
            raise RuntimeError("no floor")
        self.start = int(np.random.default_rng(seed).integers(100))
        self.steps = 0
        return self.start, {}

    def step(self, action):
        self.steps += 1
        normal = self.start + self.steps, float(action), self.steps >= self.length, False, {}
        if self.steps == self.at and self.fault and first_time(self.flag):
            return self.go_wrong(normal)
        return normal

    def go_wrong(self, normal):  # noqa: C901  # one line for each fault
        odd = {
            "nan": (0, float("nan"), False, False, {}),
            "shape": (np.zeros(3), 0.0, False, False, {}),
            "four": (0, 0.0, False, {}),
        }
        match self.fault:
            case "step":
                raise ValueError("leg\nbroken")
            case "exit":
                raise SystemExit(3)
            case "next":
                next(iter(()))
            case "sleep":
                time.sleep(30)
            case "slow":
                time.sleep(0.15)
            case "spin":
                while True:
                    pass
            case "hold":  # Python's lock
                ctypes.PyDLL(None).sleep(30)
            case "close":
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                time.sleep(30)
            case "orphan":  # its conductor is killed
                psutil.Process().parents()[1].kill()
                time.sleep(30)
            case "die":
                os._exit(9)
        return odd.get(self.fault, normal)


class Rich(Walk):
    """One step, whose reward is so large that three of them overflow."""

    def step(self, action):
        return 0, 1.5e308, True, False, {}


class NanBox(Walk):
    observation_space = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None):
        return np.array([0, np.nan], dtype=np.float32), {}


class Unknown(gymnasium.Space):
    """A space of somebody's own."""


class Odd(Walk):
    observation_space = Dict(a=Unknown())


class Raises(Walk):
    def __init__(self):
        raise OSError("no display")


class Vector(gymnasium.Env):
    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        assert action.dtype == np.float32
        action += 0.0  # writable
        return np.array([0.5, 0.5]), np.float64(action[0]), False, False, {}


class Agent:
    """Always 1; counts what it learned, and notes it where the test can read it."""

    def __init__(self, *, observation_space, action_space, seed, fault="", at=2, log="", flag=""):
        self.space, self.fault, self.at, self.log, self.flag = action_space, fault, at, log, flag
        self.learned, self.acts = 0, 0
        self.rng = np.random.default_rng(seed)
        if fault == "init":
            raise ValueError("no brain")

    def act(self, observation, *, explore):
        self.acts += 1
        if self.acts == self.at and first_time(self.flag):
            match self.fault:
                case "act":
                    raise KeyError("observation")
                case "bad_action":
                    return 7
                case "sleep":
                    time.sleep(30)
        if isinstance(self.space, Box):
            return self.rng.uniform(-1, 1, 1)
        return 1

    def learn(self, transition):
        if self.fault == "learn":
            raise ZeroDivisionError
        self.learned += 1
        if self.log:
            with Path(self.log).open("a") as file:
                print(repr(transition), file=file)

    def state_dict(self):
        return {
            "learned": self.learned,
            "table": np.full(2, self.learned),
            "rng": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state):
        assert (state["table"] == state["learned"]).all()
        self.learned = state["learned"]
        self.rng.bit_generator.state = state["rng"]


class Random(Agent):
    def act(self, observation, *, explore):
        return int(self.rng.integers(2))


class Overwrites(Vector):
    """Its one observation, written over and over; the action that it was given, too."""

    def reset(self, *, seed=None, options=None):
        self.state = np.zeros(2, np.float32)
        return self.state, {}

    def step(self, action):
        action[:] = 9
        self.state += 1
        return self.state, 0.0, False, False, {}


class Sleeper(Walk):
    def __init__(self):
        time.sleep(30)


class Forgetful(Agent):
    """Without `state_dict`: what it knows, it knows as long as it lives."""

    state_dict = load_state_dict = None

    def __init__(self, **more):
        super().__init__(**more)
        self.phases = []

    def act(self, observation, *, explore):
        if not self.phases or self.acts % 5 == 0:
            self.phases.append(observation)
        return super().act(observation, explore=explore)


class Unsaveable(Agent):
    def state_dict(self):
        return {"learned": object()}


class Gradient:
    """REINFORCE with a linear softmax policy, as small as it gets."""

    def __init__(self, *, observation_space, action_space, seed):
        self.weights = np.zeros((int(action_space.n), observation_space.shape[0]))
        self.rng = np.random.default_rng(seed)
        self.steps = []

    def act(self, observation, *, explore):
        scores = self.weights @ observation
        if not explore:
            return int(np.argmax(scores))
        chances = np.exp(scores - scores.max())
        return int(self.rng.choice(len(chances), p=chances / chances.sum()))

    def learn(self, transition):
        self.steps.append(transition)
        if transition.terminated or transition.truncated:
            for back, step in enumerate(reversed(self.steps)):
                scores = self.weights @ step.observation
                chances = np.exp(scores - scores.max())
                chances /= chances.sum()
                chosen = np.eye(len(chances))[step.action]
                self.weights += 0.01 * (back + 1) * np.outer(chosen - chances, step.observation)
            self.steps = []

    def state_dict(self):
        return {"weights": self.weights, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state):
        self.weights = np.array(state["weights"])
        self.rng.bit_generator.state = state["rng"]


class Tires(Walk):
    """Its `at` counts the steps of all episodes."""

    def __init__(self, *, at, **more):
        super().__init__(at=10**9, **more)
        self.left = at

    def step(self, action):
        self.left -= 1
        if not self.left:
            return self.go_wrong(None)
        return super().step(action)


class Reflex:
    """Acts only on its observation, so that an episode does not depend on the others."""

    fault = ""

    def __init__(self, *, observation_space, action_space, seed):
        self.learned = 0

    def act(self, observation, *, explore):
        return int(np.sum(observation) * 1000) % 2

    def learn(self, transition):
        self.learned += 1

    def state_dict(self):
        return {"learned": self.learned}


class Many(Reflex):
    def act(self, observation, *, explore):
        raise AssertionError("one by one")

    def act_many(self, observations, *, explore):
        assert isinstance(observations, np.ndarray)
        return [super(Many, self).act(observation, explore=explore) for observation in observations]


class Few(Many):
    def act_many(self, observations, *, explore):
        return [0]


class Stuck(Many):
    def act_many(self, observations, *, explore):
        time.sleep(30)


class Unlucky(Walk):
    """Goes wrong in the episodes that begin at `start` alone."""

    def __init__(self, *, start, **more):
        super().__init__(**more)
        self.unlucky = start

    def go_wrong(self, normal):
        return super().go_wrong(normal) if self.start == self.unlucky else normal


class Endless(Walk):
    """As good as."""

    observation_space = Discrete(10**12)

    def __init__(self):
        super().__init__(length=10**9)


class Once(Walk):
    """There is one of it in all; it counts its episodes in a file."""

    def __init__(self, *, flag, log):
        super().__init__()
        if not first_time(flag):
            raise RuntimeError("no second one")
        self.log = Path(log)

    def reset(self, *, seed=None):
        with self.log.open("a") as log:
            log.write("reset\n")
        return super().reset(seed=seed)


class Dies(Agent):
    """In its act number `at`, with the process."""

    def act(self, observation, *, explore):
        if self.acts + 1 == self.at and first_time(self.flag):
            os._exit(9)
        return super().act(observation, explore=explore)


class Spins(Agent):
    """In the middle of what it learns, once it has learned `at` steps: a hang that Python can interrupt."""

    def learn(self, transition):
        super().learn(transition)
        while self.learned == self.at:
            pass


class Built(Walk):
    """Adds a byte to the file `log` when it is built."""

    def __init__(self, *, log):
        super().__init__()
        with Path(log).open("ab") as file:
            file.write(b".")


class BuiltAgent(Agent):
    times = 0

    def __init__(self, **more):
        super().__init__(**more)
        BuiltAgent.times += 1
