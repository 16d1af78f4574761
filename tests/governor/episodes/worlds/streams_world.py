"""An agent that looks at all that it is told, and writes it down; an environment whose info has something of everything."""

import json
from pathlib import Path

import numpy as np
from walk_world import Walk


class Telling(Walk):
    """Its episodes have different lengths. The second step of the episode with `fault_seed` fails."""

    def __init__(self, *, length=5, fault_seed=-1, **more):
        super().__init__(length=length, **more)
        self.fault_seed = fault_seed

    def reset(self, *, seed=None):
        found = super().reset(seed=seed)
        self.length, self.seed = 3 + seed % 4, seed
        return found

    def step(self, action):
        *found, _ = super().step(action)
        if self.seed == self.fault_seed and self.steps == 2:
            raise OSError("a hole")
        info = {
            "seed": self.seed,
            "deep": {"field": np.arange(3), "names": ("a", b"b", None)},
            "shared": found,
            "odd": object(),
            3: "no text",
        }
        return *found, info


class Witness:
    """Its actions say nothing of what they are made for; its extras do."""

    def __init__(
        self, *, observation_space, action_space, seed, log="", fault="", needs_info=False, rollout_steps=0
    ):
        self.log, self.fault, self.needs_info = log, fault, needs_info
        self.learned = 0
        if rollout_steps:
            self.rollout_steps, self.learn_batch = rollout_steps, self._learn_batch

    def tell(self, *told):
        if self.log:
            with Path(self.log).open("a") as file:
                print(json.dumps(told), file=file)

    def begin(self, episode):
        if self.fault == "begin":
            raise OSError("no pen")
        self.tell("begin", *self._seen(episode))

    def end(self, episode):
        self.tell("end", *self._seen(episode), episode.outcome, episode.value, episode.steps)
        if self.fault == "end":
            raise OSError("no ink")

    @staticmethod
    def _seen(episode):
        return (
            episode.worker, episode.number, episode.seed, episode.workers, episode.explore, episode.evaluation, episode.phase,
        )  # fmt: skip

    def reset_states(self, worker):
        self.tell("reset", worker)

    def act(self, observation, *, explore, worker):
        return 1, {"of": (worker, observation), "hidden": np.full(2, observation)}

    def learn(self, step):
        self.learned += 1
        assert step.extras["of"] == (step.worker, step.observation)
        info = {key: value for key, value in step.info.items() if key == "seed"}
        self.tell(
            "learn", step.worker, step.episode, step.step, step.seed, step.observation, step.next_observation, info
        )  # fmt: skip

    def _learn_batch(self, rollout):
        assert (rollout.extras["of"][0] == rollout.workers).all()
        assert (rollout.extras["hidden"] == rollout.observation[:, :, None]).all()
        within = ~rollout.ends[:-1]
        assert (rollout.next_observation[:-1] == rollout.observation[1:])[within].all()
        assert (rollout.episode[:-1] == rollout.episode[1:])[within].all()
        self.tell("rollout", rollout.workers.tolist(), list(rollout.observation.shape))
        if self.fault == "learn_batch":
            raise OSError("too many")

    def state_dict(self):
        return {"learned": self.learned}

    def load_state_dict(self, state):
        self.learned = state["learned"]


class WitnessOfMany(Witness):
    def act_many(self, observations, *, explore, worker):
        extras = {
            "of": [(int(one), int(seen)) for one, seen in zip(worker, observations, strict=True)],
            "hidden": np.repeat(observations[:, None], 2, axis=1),
        }
        return np.ones(len(observations), int), extras


class WitnessOfPlayers(Witness):
    """Its actions are the first legal ones."""

    def act(self, observation, *, explore, worker, player, action_mask):
        action = 1 if action_mask is None else int(np.argmax(action_mask))
        return action, {"of": (player, worker, observation), "hidden": np.full(2, observation)}

    def learn(self, step, player):
        self.learned += 1
        assert step.player == player
        assert step.extras["of"] == (player, step.worker, step.observation)
        assert set(step.info) == ({"action_mask", "left"} if self.needs_info else set())
        seen = [step.worker, step.player, step.episode, step.step, step.seed]
        self.tell("learn", *seen, step.observation, step.next_observation, step.reward, step.info.get("left"))

    def end(self, episode):
        super().end(episode)
        self.tell("values", dict(episode.values))

    def _learn_batch(self, rollout):
        within = ~rollout.ends[:-1]
        assert (rollout.next_observation[:-1] == rollout.observation[1:])[within].all()
        self.tell("rollout", rollout.workers.tolist(), rollout.players, rollout.step.tolist())


class Looks(Witness):
    """It wants what it has not asked for."""

    def learn(self, step):
        step.info["lives"]


class Alone(Witness):
    streams = "one"


class Unfinished(Witness):
    """It does not say how many steps a rollout has."""

    def learn_batch(self, rollout):
        self.learned += 1
