"""Agents that the rules of a phase are about: how good they are follows from what they have learned."""

import os
import time
from pathlib import Path


class Late:
    """Takes action 1, the good one, once it has learned from `at` steps. Notes each action's `explore` in `log`."""

    def __init__(self, *, observation_space, action_space, seed, at=0, until=10**9, log=""):
        self.at, self.until, self.log = at, until, log
        self.learned = 0

    def act(self, observation, *, explore):
        if self.log:
            with Path(self.log).open("a") as file:
                file.write("x" if explore else ".")
        return int(self.at <= self.learned < self.until)

    def learn(self, transition):
        self.learned += 1

    def state_dict(self):
        return {"learned": self.learned}

    def load_state_dict(self, state):
        self.learned = state["learned"]


class Diary(Late):
    """Notes there, too, what it learns."""

    def learn(self, transition):
        with Path(self.log).open("a") as file:
            file.write("!")
        super().learn(transition)


class LateMany(Late):
    def act_many(self, observations, *, explore):
        return [self.act(observation, explore=explore) for observation in observations]


class Stateless:
    def __init__(self, *, observation_space, action_space, seed):
        pass

    def act(self, observation, *, explore):
        return 1


class Slow(Late):
    """To say what it knows."""

    def state_dict(self):
        time.sleep(0.2)
        return super().state_dict()


class Dies(Late):
    """When its state is asked for while the file `flag` is there, which goes with it."""

    def __init__(self, *, flag, **more):
        super().__init__(**more)
        self.flag = Path(flag)

    def state_dict(self):
        if self.flag.exists():
            self.flag.unlink()
            os._exit(9)
        return super().state_dict()
