import threading

import pytest

from governor.episodes.learned import Learned
from governor.episodes.remote.async_learner import AsyncLearner, EpisodeTicket


class Counter:
    def __init__(self):
        self.learned = 0
        self.reached = {n: threading.Event() for n in range(1, 10)}

    def learn(self, transition):
        self.learned += 1
        self.reached[self.learned].set()

    def state_dict(self):
        return {"learned": self.learned}

    def load_state_dict(self, state):
        self.learned = state["learned"]


@pytest.fixture
def learner():
    return Counter()


@pytest.fixture
def async_learner(learner, tmp_path):
    learned = Learned(learner, tmp_path / "state")
    made = AsyncLearner(learner=learner, learned=learned, actor=Counter(), bound=2, name="walker")
    yield made
    made.close()


def test_the_learner_does_not_get_ahead_of_a_running_action(async_learner, learner):
    def act():
        for _ in range(5):
            async_learner.learn(EpisodeTicket(b"session"), None)
        assert learner.reached[2].wait(20)
        return learner.reached[3].wait(0.1)

    assert async_learner.act(act, latest=False) is False
    assert learner.reached[5].wait(20)
    assert async_learner.version == 0


def test_an_actor_that_is_too_far_behind_gets_a_snapshot_first(async_learner, learner):
    learned = threading.Event()
    for _ in range(3):
        async_learner.learn(EpisodeTicket(b"session"), None)
    async_learner.call_when_learned(learned.set, session=b"session")
    assert learned.wait(20)
    assert async_learner.act(lambda: async_learner.version, latest=False) == 3


def test_an_actor_that_does_not_explore_acts_with_all_that_was_learned(async_learner, learner):
    learned = threading.Event()
    async_learner.learn(EpisodeTicket(b"session"), None)
    async_learner.call_when_learned(learned.set, session=b"session")
    assert learned.wait(20)
    assert async_learner.act(lambda: async_learner.version, latest=False) == 0
    assert async_learner.act(lambda: async_learner.version, latest=True) == 1


def test_nothing_more_is_learned_of_an_episode_with_a_fault(async_learner, learner):
    ticket = EpisodeTicket(b"session")
    ticket.fault = "agent.learn", "ZeroDivisionError"
    async_learner.learn(ticket, None)
    async_learner.learn(EpisodeTicket(b"other"), None)
    assert learner.reached[1].wait(20)
    async_learner.close()
    assert learner.learned == 1
