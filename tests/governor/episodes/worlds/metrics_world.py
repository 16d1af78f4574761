"""Environments and agents with numbers of their own."""

import threading

import gymnasium
import numpy as np
from parallel_world import Pair
from walk_world import Agent, Walk


class Told(Walk):
    """What its infos say; `odd` is the value of the key `odd` in step `at`."""

    odd = None

    def __init__(self, *, context=None, odd="", at=2, later="", **more):
        super().__init__(**more)
        self.context, self.at, self.later = context, at, later
        self.odd = {"text": "left", "array": np.zeros(3), "dict": {"deep": 1}, "nan": float("nan")}.get(odd)

    def reset(self, *, seed=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"level": seed % 5, "success": False}

    def step(self, action):
        *values, _ = super().step(action)
        info = {
            "success": np.bool_(values[2]),
            "speed": np.float32(self.steps / 4),
            "left": self.length - self.steps,
        }
        if self.odd is not None and self.steps == self.at:
            info["odd"] = self.odd
        if values[2]:
            info["episode"] = {"r": np.array(2.5), "l": self.steps}
        if self.later and self.start % 2:
            info[self.later] = 1
        return *values, info


class Unready(Told):
    """Each second reset fails."""

    resets = 0

    def reset(self, *, seed=None):
        self.resets += 1
        if self.resets % 2 == 0:
            raise RuntimeError("not ready")
        return super().reset(seed=seed)


class Reporting(Told):
    """Reports in reset and step."""

    def reset(self, *, seed=None):
        self.context.report(resets=1)
        return super().reset(seed=seed)

    def step(self, action):
        self.context.report(height=self.steps, phase=len(self.context.phase))
        found = super().step(action)
        self.seen = self.context.episode
        self.context.report(number=self.seen)
        return found


class Critic(Agent):
    """Reports a loss for each step that it learns, NaN for each fourth one; acts as its observation says."""

    def __init__(self, *, context, **more):
        super().__init__(**more)
        self.context = context

    def act(self, observation, *, explore):
        self.context.report(act=observation % 3, number_of_act=self.context.episode)
        return observation % 2

    def learn(self, transition):
        super().learn(transition)
        self.context.report(loss=self.learned if self.learned % 4 else float("nan"))

    def metrics(self):
        return {"train/learned": self.learned, "flag": True}


class ManyCritic(Critic):
    def act_many(self, observations, *, explore):
        self.context.report(at_once=1)
        return [observation % 2 for observation in observations]


class Beside(Agent):
    """Reports from a thread of its own, which is over before the call is."""

    def __init__(self, *, context, **more):
        super().__init__(**more)
        self.context = context

    def learn(self, transition):
        thread = threading.Thread(target=self.context.report, kwargs={"loss": 4.0})
        thread.start()
        thread.join()
        super().learn(transition)


class Wordy(Agent):
    """Its metrics are none."""

    def metrics(self):
        return {"loss": "high"}


class PairTold(Pair):
    """Blue is never told `tag`."""

    def reset(self, seed=None, options=None):
        observations, _ = super().reset(seed=seed)
        return observations, {agent: {} for agent in self.agents}

    def step(self, actions):
        *values, _ = super().step(actions)
        infos = {agent: {"steps_left": self.lengths[agent] - self.steps} for agent in actions}
        infos.get("red", {})["tag"] = self.steps
        return *values, infos


class Registered(gymnasium.Env):
    """By an id of Gymnasium."""

    observation_space = Walk.observation_space
    action_space = Walk.action_space

    def __init__(self, *, size=1, context=None):
        self.size, self.context = size, context
