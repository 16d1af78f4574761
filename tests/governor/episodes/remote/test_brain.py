import threading

import pytest

from governor.episodes.learned import Learned
from governor.episodes.remote.brain import AsyncLearner, EpisodeTicket


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
def brain(learner, tmp_path):
    learned = Learned(learner, tmp_path / "state")
    made = AsyncLearner(learner=learner, learned=learned, actor=Counter(), bound=2, name="walker")
    yield made
    made.close()


def test_the_learner_does_not_get_ahead_of_an_action_that_goes_on(brain, learner):
    def act():
        for _ in range(5):
            brain.learn(EpisodeTicket(b"seat"), None)
        assert learner.reached[2].wait(20)
        return learner.reached[3].wait(0.1)

    assert brain.act(act, latest=False) is False
    assert learner.reached[5].wait(20)
    assert brain.version == 0


def test_an_actor_that_is_too_far_behind_gets_a_snapshot_first(brain, learner):
    learned = threading.Event()
    for _ in range(3):
        brain.learn(EpisodeTicket(b"seat"), None)
    brain.afterwards(learned.set, seat=b"seat")
    assert learned.wait(20)
    assert brain.act(lambda: brain.version, latest=False) == 3


def test_who_does_not_explore_acts_with_all_that_was_learned(brain, learner):
    learned = threading.Event()
    brain.learn(EpisodeTicket(b"seat"), None)
    brain.afterwards(learned.set, seat=b"seat")
    assert learned.wait(20)
    assert brain.act(lambda: brain.version, latest=False) == 0
    assert brain.act(lambda: brain.version, latest=True) == 1


def test_nothing_more_is_learned_of_an_episode_with_a_fault(brain, learner):
    trace = EpisodeTicket(b"seat")
    trace.fault = "agent.learn", "ZeroDivisionError"
    brain.learn(trace, None)
    brain.learn(EpisodeTicket(b"other"), None)
    assert learner.reached[1].wait(20)
    brain.close()
    assert learner.learned == 1
