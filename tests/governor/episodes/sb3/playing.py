"""Episodes as the transports play them, in lockstep, and the same environments for `model.learn`."""

import gymnasium
import numpy as np

from governor.episodes.transition import Episode, Transition


def seed_of(worker, number):
    return 1000 * worker + number


class Seeded(gymnasium.Wrapper):
    """Each episode begins with its own seed, though Stable-Baselines3 gives none but to the first."""

    def __init__(self, env, seeds):
        super().__init__(env)
        self.seeds = iter(seeds)

    def reset(self, *, seed=None, options=None):
        return self.env.reset(seed=next(self.seeds))


class Lockstep:
    """As many environments as workers; each takes a step in turn. `act_many` asks for all actions at once."""

    def __init__(self, make, workers=1, *, act_many=False):
        self.environments = [make() for _ in range(workers)]
        self.workers = workers
        self.at_once = act_many
        self.numbers = [-1] * workers
        self.steps = [0] * workers
        self.seen = [None] * workers

    def begin(self, agent, worker):
        self.numbers[worker] += 1
        self.steps[worker] = 0
        seed = seed_of(worker, self.numbers[worker])
        agent.begin(
            Episode(
                number=self.numbers[worker], phase="train", seed=seed, worker=worker, workers=self.workers
            )
        )
        self.seen[worker], _ = self.environments[worker].reset(seed=seed)

    def play(self, agent, rounds, *, until_end=False):
        """So many steps of each; with `until_end` that many episodes of the only one."""
        ends = 0
        for worker in range(self.workers):
            self.begin(agent, worker)
        while rounds > 0:
            for worker, (action, extras) in enumerate(self.acted(agent)):
                over = self.step(agent, worker, action, extras)
                ends += over
                if over and not (until_end and rounds == 1):
                    self.begin(agent, worker)
                rounds -= over if until_end else 0
            rounds -= 0 if until_end else 1
        return agent

    def acted(self, agent):
        if self.at_once:
            return zip(
                *agent.act_many(np.array(self.seen), explore=True, worker=np.arange(self.workers)),
                strict=True,
            )
        return [agent.act(seen, explore=True, worker=at) for at, seen in enumerate(self.seen)]

    def step(self, agent, worker, action, extras):
        action = int(action) if np.ndim(action) == 0 else action
        following, reward, terminated, truncated, _ = self.environments[worker].step(action)
        agent.learn(
            Transition(
                observation=self.seen[worker], action=action, reward=float(reward), next_observation=following,
                terminated=bool(terminated), truncated=bool(truncated), worker=worker,
                step=self.steps[worker], extras=extras,
            )
        )  # fmt: skip
        self.seen[worker] = following
        self.steps[worker] += 1
        return terminated or truncated
