"""Agents whose weights have a version, or which note with what they act."""

import threading

from walk_world import Agent


class Versioned(Agent):
    """Notes for each act the version of its weights and that of the instance that learns: in the class, for both of them."""

    @classmethod
    def fresh(cls):
        cls.acts_seen, cls.latest, cls.acted = [], 0, threading.Event()

    def act(self, observation, *, explore):
        type(self).acts_seen.append((self.learned, type(self).latest))
        if len(self.acts_seen) == 3:
            self.acted.set()
        return super().act(observation, explore=explore)

    def learn(self, transition):
        if self.fault == "waits":
            assert self.acted.wait(20), "acting waits for it"
        if self.fault == "once" and self.learned + 1 == self.at:
            self.fault = ""
            raise ZeroDivisionError
        super().learn(transition)
        type(self).latest = self.learned


class Steady(Agent):
    """Its weights change with every third step that it learns."""

    @property
    def weight_version(self):
        return self.learned // 3


class Draws(Agent):
    """Notes what it draws; a snapshot of its weights is none of its generator."""

    def __init__(self, **more):
        super().__init__(**more)
        type(self).drawn = []

    def act(self, observation, *, explore):
        self.drawn.append(float(self.rng.random()))
        return 1

    def load_weights(self, state):
        self.learned = state["learned"]
