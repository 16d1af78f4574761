"""Wrappers of environments."""


class Limited:
    """A wrapper: episodes have so many steps at `most`."""

    def __init__(self, inner, most):
        self.inner, self.most = inner, most
        self.observation_space, self.action_space = inner.observation_space, inner.action_space

    def reset(self, *, seed=None):
        self.steps = 0
        return self.inner.reset(seed=seed)

    def step(self, action):
        self.steps += 1
        observation, reward, terminated, truncated, info = self.inner.step(action)
        return observation, reward, terminated, truncated or self.steps >= self.most, info
