"""An agent whose next action depends on all of its state."""

import os
import threading
import time
from pathlib import Path

import numpy as np
from walk_world import Walk

IS_DUE, GOES_ON = threading.Event(), threading.Event()
"""An agent waits, and for what."""


class Draws:
    def __init__(self, observation_space, action_space, seed, *, slow=0.0, waits_at=0):
        self.random = np.random.default_rng(seed)
        self.slow, self.waits_at = slow, waits_at
        self.steps = 0

    def act(self, observation, *, explore):
        return int(self.random.integers(2)) if explore else 0

    def learn(self, transition):
        time.sleep(self.slow)
        self.steps += 1
        if self.steps == self.waits_at:
            IS_DUE.set()
            GOES_ON.wait(60)

    def state_dict(self):
        return {"random": self.random.bit_generator.state, "steps": self.steps}

    def load_state_dict(self, state):
        self.random.bit_generator.state = state["random"]
        self.steps = state["steps"]


class Mortal(Walk):
    """Its process ends at the reset after so many `episodes`, and from then on at each one, as the file `mark` says."""

    def __init__(self, *, episodes, mark):
        super().__init__()
        self.left, self.mark = episodes, Path(mark)

    def reset(self, *, seed=None):
        self.left -= 1
        if self.left < 0 or self.mark.exists():
            self.mark.touch()
            os._exit(3)
        return super().reset(seed=seed)
