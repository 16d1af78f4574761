"""Environments and agents for episodes inside runners: they go wrong in the episodes whose seeds they are told."""

import json
import os
import socket
import time
from pathlib import Path

import numpy as np
from gymnasium.spaces import Discrete


def note(path):
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")


def shortened(walk, length):
    """A wrapper."""
    walk.length = length
    return walk


class Walk:
    """`length` steps; the return of an episode depends on its seed and on the actions.

    An episode whose seed is in `bad` has a `fault` at step `at`, before which it says at the `gate` that it is there; none if
    the file `once` is there, which the first one makes. `built` and `begun` are files for pids: of processes that made one
    and that began a bad episode.
    """

    observation_space = Discrete(1000)
    action_space = Discrete(2)

    def __init__(
        self, *, length=5, fault="", bad=(), at=3, once="", begun="", built="", gate="", building=0.0
    ):
        self.length, self.fault, self.bad, self.at = length, fault, bad, at
        self.once, self.begun, self.gate = once, begun, gate
        time.sleep(building)
        if built:
            note(built)
        if fault == "build":
            raise OSError("no ground")
        if fault == "die_in_build":
            os._exit(9)

    def reset(self, *, seed=None):
        self.random = np.random.default_rng(seed)
        self.steps = 0
        self.endless = False
        self.is_bad = seed in self.bad
        if self.is_bad and self.begun:
            note(self.begun)
        return int(self.random.integers(100)), {}

    def step(self, action):
        self.steps += 1
        if self.is_bad and self.steps == self.at and not (self.once and Path(self.once).exists()):
            self.go_wrong()
        if self.endless:
            time.sleep(0.01)
        end = self.steps >= max(self.length, self.is_bad * self.at) and not self.endless
        return int(self.random.integers(1000)), float(action) + float(self.random.random()), end, False, {}

    def go_wrong(self):
        if self.once:
            Path(self.once).touch()
        if self.gate:
            self.door = socket.socket(socket.AF_UNIX)
            self.door.connect(self.gate)
            me = {"task": "", "run": 0, "attempt": 1, "pid": os.getpid(), "began": 0.0}
            self.door.sendall(json.dumps(me).encode() + b"\n")
        match self.fault:
            case "hang":
                time.sleep(600)
            case "die":
                os._exit(9)
            case "raise":
                raise ValueError("a stone")
            case "endless":
                self.endless = True


class Reflex:
    """Acts by what it sees and by what was saved, so that an episode is the same whoever plays beside it."""

    def __init__(self, *, observation_space, action_space, seed):
        self.actions = int(action_space.n)
        self.shift = 0

    def act(self, observation, *, explore):
        return (int(observation) * 7 + self.shift) % self.actions

    def state_dict(self):
        return {"shift": self.shift}

    def load_state_dict(self, state):
        self.shift = state["shift"]


class Learner(Reflex):
    def learn(self, transition):
        self.shift += 1
