"""An environment whose episodes fail in their first attempts, in whatever process these are."""

from pathlib import Path

from gymnasium.spaces import Discrete


class Failing:
    """Three steps; an episode of one of the `seeds` raises after the first one, `times` times. `log` has a line for each."""

    observation_space, action_space = Discrete(4), Discrete(2)

    def __init__(self, log, seeds=None, times=1_000_000):
        self.log, self.seeds, self.times = Path(log), seeds, times

    def reset(self, *, seed=None):
        self.steps, self.fails = 0, False
        if self.seeds is None or seed in self.seeds:
            known = self.log.read_text().split() if self.log.exists() else []
            self.fails = known.count(str(seed)) < self.times
        self.seed = seed
        return 0, {}

    def step(self, action):
        self.steps += 1
        if self.fails and self.steps == 2:
            with self.log.open("a") as file:
                file.write(f"{self.seed}\n")
            raise ValueError("no way on")
        return self.steps, 1.0, self.steps == 3, False, {}
