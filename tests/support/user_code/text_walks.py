"""Text environments in Python, as users write them."""

from __future__ import annotations

import os
import threading


class Walk:
    def __init__(self, steps=3, fault=""):
        self.steps, self.fault, self.taken = steps, fault, 0

    def get_task_prompt(self):
        return [{"role": "user", "content": "where to?"}]

    def step(self, action):
        self.taken += 1
        if self.fault == "hang":
            threading.Event().wait()
        if self.fault == "exit":
            os._exit(3)
        if self.fault == "raise":
            raise ValueError("no way")
        return {
            "reward": 1.0,
            "terminated": self.taken >= self.steps,
            "truncated": False,
            "info": {"pid": os.getpid()},
        }


class Seeded:
    """Reused for the next episode, because it has `reset`. The seed determines the reward of an episode."""

    def reset(self, *, seed):
        self.worth, self.taken = seed % 100, 0

    def get_task_prompt(self):
        return [{"role": "user", "content": f"{self.worth}, step {self.taken}"}]

    def step(self, action):
        self.taken += 1
        return self.worth, self.taken == 2, False, {"pid": os.getpid()}


class Sticky(Walk):
    """Hangs in its 20th step."""

    def __init__(self):
        super().__init__(steps=100)

    def step(self, action):
        self.fault = "hang" if self.taken == 19 else ""
        return super().step(action)


class Stubborn(Walk):
    def __init__(self):
        raise OSError("no display")
