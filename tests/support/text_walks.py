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
