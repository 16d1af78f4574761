"""Agents for conductors in the test's own process, which may hold them up and look at what they did; and environments."""

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box
from walk_world import Agent, Unlucky, Walk, first_time


class Held:
    """Who comes to `hold` is held there until it is `let_go`; to be mixed in."""

    @classmethod
    def fresh(cls):
        cls.there, cls.go = threading.Event(), threading.Event()

    @classmethod
    def let_go(cls):
        cls.go.set()

    def hold(self):
        self.there.set()
        self.go.wait(30)


class HeldWalk(Walk):
    """In the step with action 1 it connects to the path `held`, and waits until that connection is closed."""

    def __init__(self, *, held):
        super().__init__()
        self.held = held

    def step(self, action):
        if action:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(self.held)
                line.recv(1)
        return super().step(action)


class HeldAgent(Held, Agent):
    """When it sees a 1."""

    def act(self, observation, *, explore):
        if observation == 1:
            self.hold()
        return 0


class HeldState(Held, Agent):
    """In the state number `at` of those that are asked for once it has learned; that one is never given."""

    def state_dict(self):
        if self.learned:
            self.at -= 1
            if self.at == 0:
                self.hold()
                raise RuntimeError("let go")
        return super().state_dict()


class Dawdles(Unlucky):
    """The first step takes as many seconds as `slow` has for the start of the episode; all but the unlucky one end with it."""

    def __init__(self, *, slow, **more):
        super().__init__(**more)
        self.slow = dict(slow)

    def step(self, action):
        if self.start != self.unlucky:
            self.length = 1
        if not self.steps:
            time.sleep(self.slow.get(self.start, 0))
        return super().step(action)


class Echo:
    """Its observations and actions are one number in an array; the agent should say what it saw."""

    observation_space = action_space = Box(-1, 1, (1,), np.float32)


class OneBuffer:
    """Gives the same array for each action; `heard` is what it learned, as (observation, action)."""

    def __init__(self, *, observation_space, action_space, seed):
        self.action = np.zeros(1, np.float32)
        type(self).heard = []

    def act(self, observation, *, explore):
        self.action[:] = observation
        return self.action

    def learn(self, transition):
        self.heard.append((float(transition.observation[0]), float(transition.action[0])))


class ManyOneBuffer(OneBuffer):
    def act_many(self, observations, *, explore):
        self.actions = getattr(self, "actions", np.zeros((9, 1), np.float32))
        self.actions[: len(observations)] = observations
        return self.actions[: len(observations)]


class HasChild(Walk):
    """Starts a process in a session of its own; its pid is a line of the file `log`."""

    def __init__(self, *, log, **more):
        super().__init__(**more)
        child = subprocess.Popen(["sleep", "300"], start_new_session=True)
        with Path(log).open("a") as file:
            print(child.pid, file=file)


class DiesBuilt(Walk):
    def __init__(self, *, flag=""):
        super().__init__()
        if first_time(flag):
            os.kill(os.getpid(), signal.SIGKILL)


class Film(Walk):
    """Its observations are large enough for shared memory, and each is another one."""

    observation_space = Box(0, 255, (100, 100, 3), np.uint8)

    def reset(self, *, seed=None):
        start, info = super().reset(seed=seed)
        return self.picture(start), info

    def step(self, action):
        place, *others = super().step(action)
        return self.picture(place), *others

    def picture(self, place):
        return np.random.default_rng(place).integers(0, 255, (100, 100, 3), np.uint8)


class Watcher(Agent):
    """What it does depends on all of an observation, and fails if what it learns from is not what it saw."""

    def act(self, observation, *, explore):
        self.seen = int(observation.sum())
        return self.seen % 2

    def act_many(self, observations, *, explore):
        return [self.act(one, explore=explore) for one in observations]

    def learn(self, transition):
        super().learn(transition)
        if transition.action != int(transition.observation.sum()) % 2:
            raise ValueError("another observation")


class Pictures(Walk):
    """The bounds of its observations are larger than what a socket takes at once."""

    def __init__(self):
        super().__init__()
        self.observation_space = Box(0, 255, (600, 600, 3), np.uint8)
