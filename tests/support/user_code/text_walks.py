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


class Reporting:
    """Says what its context knows, and reports from its own thread and from another. In its second episode it fails."""

    def __init__(self, context):
        self.context, self.episodes = context, 0
        self.made = {"run": context.run_id, "folder": str(context.run_folder), "made in": context.phase}
        context.report(built=1)

    def reset(self, *, seed):
        self.episodes += 1
        self.taken = 0

    def get_task_prompt(self):
        return [{"role": "user", "content": "where to?"}]

    def step(self, action):
        self.taken += 1
        self.context.report(loss=self.taken * self.episodes)
        other = threading.Thread(target=self.context.report, kwargs={"other": float("nan")})
        other.start()
        other.join()
        if self.episodes == 2:
            raise ValueError("no way")
        self.context.log.info("a step")
        info = self.made | {"phase": self.context.phase, "episode": self.context.episode, "pid": os.getpid()}
        return 1.0, self.taken == 2, False, info


class ReportingAsync(Reporting):
    async def step(self, action):
        return super().step(action)


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
