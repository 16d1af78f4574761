"""A vector of walks that steps by itself, in each of Gymnasium's ways to reset, and what may go wrong in it."""

import os
import signal
import threading
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

FAULT_AT = 3
"""The step of all at which a fault comes."""


class Walks(VectorEnv):
    """Environment i counts to 3 + i + the number of its episodes so far, and ends then. It observes its place and its number.

    Of `endless` ones no episode ends, nor, if it is a number, from that environment on. `fault` comes once, if there is a `flag`: ``nan``, ``reward``, ``text`` and ``reset`` in the second environment, ``raise``,
    ``shape``, ``none``, ``exit`` and ``sleep`` for all, ``floor`` in its reset of that number. The last observations of episodes are in infos as `final`.
    """

    def __init__(
        self,
        num_envs,
        *,
        mode="NextStep",
        fault="",
        fault_at=FAULT_AT,
        flag="",
        endless=False,
        final="final_obs",
        reaches=False,
    ):
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(0, np.inf, (2,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        if reaches:
            self.single_action_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.mode = AutoresetMode(mode)
        self.metadata = {"autoreset_mode": self.mode}
        self.fault, self.fault_at, self.final = fault, fault_at, final
        self.flag = Path(flag or os.devnull)
        ending = 0 if endless is True else endless or num_envs
        self.ends = np.arange(num_envs) < ending
        self.places = np.zeros(num_envs, np.int64)
        self.played = np.zeros(num_envs, np.int64)
        self.over = np.zeros(num_envs, np.bool_)
        self.seen = np.zeros((num_envs, 2), np.float32)
        self.steps = 0
        self.seeds = []

    def observations(self):
        """In one array, each time."""
        self.seen[:] = np.stack([self.places, np.arange(self.num_envs)], 1)
        return self.seen

    def reset(self, *, seed=None, options=None):
        chosen = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self.seeds.append(seed)
        if self.fault == "floor" and len(self.seeds) == self.fault_at and not self.flag.is_file():
            self.flag.touch()
            raise RuntimeError("no floor")
        self.places[chosen], self.over[chosen] = 0, False
        seen = self.observations()
        if self.fault == "reset" and not self.flag.is_file():
            self.flag.touch()
            seen[1, 0] = np.nan
        return seen, {}

    def step(self, actions):
        assert self.action_space.contains(actions)
        if self.mode is AutoresetMode.DISABLED:
            assert not self.over.any(), "a step after the end"
        actions[:] = 0  # what is on record does not change
        begins = self.over if self.mode is AutoresetMode.NEXT_STEP else np.zeros_like(self.over)
        self.steps += 1
        self.places = np.where(begins, 0, self.places + 1)
        length = 3 + np.arange(self.num_envs) + self.played
        over = ~begins & (self.places >= length) & self.ends
        self.played += over
        self.over = over
        seen, rewards, infos = self.observations(), np.where(begins, 0.0, 1.0), {}
        if self.mode is AutoresetMode.SAME_STEP and over.any():
            infos = {self.final: seen.copy()} if self.final else {}
            self.places[over] = 0
            seen = self.observations()
        if self.fault not in ("", "floor") and self.steps == self.fault_at and not self.flag.is_file():
            self.flag.touch()
            seen, rewards = self.failed(seen, rewards)
        return seen, rewards, over, np.zeros_like(over), infos

    def failed(self, seen, rewards):
        if self.fault == "nan":
            seen[1, 0] = np.nan
        elif self.fault == "reward":
            rewards[1] = np.inf
        elif self.fault == "text":
            rewards = [1.0, "1", *rewards[2:]]
        elif self.fault == "none":
            return None, rewards
        elif self.fault == "shape":
            return seen[:, :1], rewards
        elif self.fault == "raise":
            raise RuntimeError("no floor")
        elif self.fault == "exit":
            os._exit(3)
        elif self.fault == "sleep":
            threading.Event().wait()
        return seen, rewards


class Reports(Walks):
    """Reports the number of each of its steps."""

    def __init__(self, num_envs, *, context, **more):
        super().__init__(num_envs, **more)
        self.context = context

    def step(self, actions):
        stepped = super().step(actions)
        self.context.report(at=self.steps)
        return stepped


def poles(num_envs):
    """CartPole in a vector that resets each with a seed of its own."""
    made = [lambda: gymnasium.make("CartPole-v1")] * num_envs
    return gymnasium.vector.SyncVectorEnv(made, autoreset_mode=AutoresetMode.DISABLED)


class Leans:
    """Pushes to the side to which the pole falls, and has learned from so many steps."""

    def __init__(self, **_):
        self.steps = 0

    def act(self, observation, *, explore):
        return int(observation[2] > 0)

    def learn(self, step):
        self.steps += 1


class LeansTogether(Leans):
    def act_many(self, observations, *, explore):
        return (observations[:, 2] > 0).astype(np.int64)


class Stands:
    """Acts for all; remembers each step that it learns from, as (worker, episode, step, where it led to, terminated)."""

    def __init__(self, fault="", **_):
        self.learned, self.fault = [], fault
        self.actions = np.zeros(64, np.int64)

    def act(self, observation, *, explore):
        raise NotImplementedError("a vector asks for all")

    def act_many(self, observations, *, explore):
        if self.fault == "act" and len(self.learned) >= 8:
            self.fault = ""
            raise KeyError("no idea")
        observations[:] = 7  # likewise
        actions = self.actions[: len(observations)]
        actions[:] = 1
        return actions, {"value": np.arange(len(observations))}

    def learn(self, step):
        assert step.action == 1, "also if the agent has overwritten it"
        self.actions[:] = 0
        if self.fault == "learn" and step.worker == 1:
            self.fault = ""
            raise ZeroDivisionError
        place = float(step.next_observation[0])
        self.learned.append([step.worker, step.episode, step.step, place, step.terminated])

    def state_dict(self):
        return {"learned": [list(map(float, each)) for each in self.learned]}

    def load_state_dict(self, state):
        self.learned = [list(each) for each in state["learned"]]


class Hears(Stands):
    """Notes what it is told and asked, in one order; draws its actions from one generator, and reports how often it has acted."""

    def __init__(self, seed, context, fault="", **_):
        super().__init__(fault)
        self.heard, self.random, self.context = [], np.random.default_rng(seed), context

    def begin(self, episode):
        self.heard.append(["begin", episode.number, episode.worker, episode.seed, episode.explore])

    def end(self, episode):
        self.heard.append(["end", episode.number, episode.outcome, episode.value, episode.steps])

    def act_many(self, observations, *, explore, worker):
        self.heard.append(["act", explore, worker.tolist(), observations.tolist()])
        self.context.report(acted=len(self.heard))
        return self.random.integers(2, size=len(observations))

    def learn(self, step):
        self.heard.append(["learn", step.worker, step.episode, step.step, *map(float, step.next_observation)])
        self.heard.append([int(step.action), step.reward, step.terminated, step.truncated, step.seed])
        if self.fault == "learn" and len(self.heard) > 40:
            self.fault = ""
            raise ZeroDivisionError

    def state_dict(self):
        return {"heard": repr(self.heard)}

    def load_state_dict(self, state):
        pass


class Reaches(Stands):
    """Its actions are three numbers."""

    def act_many(self, observations, *, explore):
        return np.full((len(observations), 3), 0.5, np.float32)

    def learn(self, step):
        assert step.action.tolist() == [0.5] * 3
        self.learned.append([step.worker, step.episode, step.step])


class Writes(Stands):
    """Writes into a file how episodes have ended, as lines of (number, outcome, steps)."""

    def __init__(self, path, **more):
        super().__init__(**more)
        self.path = Path(path)

    def end(self, episode):
        with self.path.open("a") as file:
            file.write(f"{episode.number} {episode.outcome} {episode.steps}\n")


class Sleeps(Stands):
    """Hangs at its third action."""

    def act_many(self, observations, *, explore):
        if len(self.learned) >= 8:
            threading.Event().wait()
        return super().act_many(observations, explore=explore)


class Hesitates(Stands):
    """Fails at the beginning of its first three episodes."""

    begun = 0

    def begin(self, episode):
        self.begun += 1
        if self.begun <= 3:
            raise TimeoutError


class OneByOne:
    """The same for one observation."""

    def __init__(self, **_):
        pass

    def act(self, observation, *, explore):
        return 1


class Forgets(OneByOne):
    """Fails once to learn: from the first step behind the end of an episode, which is of the same round if there are several."""

    has_ended = has_failed = False

    def learn(self, step):
        if self.has_ended and not step.terminated and not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError
        self.has_ended |= step.terminated

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Dies(gymnasium.Env):
    """Of a process of its own: the third step of the episode with this seed kills it, once."""

    observation_space = gymnasium.spaces.Discrete(100)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, flag, dies_with):
        self.flag, self.dies_with, self.seed, self.place = Path(flag), dies_with, None, 0

    def reset(self, *, seed=None, options=None):
        self.seed, self.place = seed, 0
        return 0, {}

    def step(self, action):
        self.place += 1
        if self.place == 3 and self.seed == self.dies_with and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.place, 1.0, self.place == 5, False, {}


class Tells(Dies):
    """Raises instead, and leaves a file in the folder of the flag when it is closed."""

    def step(self, action):
        if self.place == 2 and self.seed == self.dies_with and not self.flag.exists():
            self.flag.touch()
            raise FileNotFoundError("no map")
        return super().step(action)

    def close(self):
        (self.flag.parent / f"closed-{os.getpid()}").touch()
