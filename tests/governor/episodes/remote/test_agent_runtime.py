import queue
import threading

import pytest

from governor.episodes.agent_calls import AgentCalls
from governor.episodes.agents import AgentSource
from governor.episodes.learned import Learned
from governor.episodes.remote.agent_episode import AgentEpisode
from governor.episodes.remote.agent_runtime import AgentRuntime, LearnBeside
from governor.episodes.spaces import Discrete
from governor.errors import ConductorError

SPACE = Discrete(n=2, start=0)


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


class Actor(Counter):
    def __init__(self, **_):
        super().__init__()

    def act(self, observation, *, explore):
        return 0


@pytest.fixture
def learner():
    return Counter()


@pytest.fixture
def replies():
    return queue.SimpleQueue()


@pytest.fixture
def beside(learner, replies, tmp_path):
    made = LearnBeside(
        Learned(learner, tmp_path / "state"),
        AgentCalls(learner, SPACE),
        AgentCalls(Counter(), SPACE),
        bound=2,
        name="walker",
        reply=lambda session, answer: replies.put((session, answer)),
    )
    yield made
    made.close()


class WithBuffer(Counter):
    """Its state holds what nobody needs to act."""

    def state_dict(self):
        raise AssertionError("it was asked for all of its state")

    def weights(self):
        return {"learned": self.learned}

    def load_weights(self, state):
        self.learned = state["learned"]


def test_a_snapshot_is_made_of_weights_where_an_agent_tells_them_from_its_state(tmp_path):
    learner, actor = WithBuffer(), WithBuffer()
    learner.learned = 3
    LearnBeside(
        Learned(learner, tmp_path / "state"), AgentCalls(learner, SPACE), AgentCalls(actor, SPACE), bound=2,
        name="walker", reply=lambda *_: None,
    ).close()  # fmt: skip
    assert actor.learned == 3


def test_the_learner_does_not_get_ahead_of_a_running_action(beside, learner):
    def act():
        for _ in range(5):
            beside.learn(AgentEpisode(b"session"), None)
        assert learner.reached[2].wait(20)
        ahead.append(learner.reached[3].wait(0.1))

    ahead = []
    assert beside.act(act, latest=False) == 0
    assert ahead == [False]
    assert learner.reached[5].wait(20)
    assert beside.version == 0


def learn_all(beside, replies, *, transitions):
    """Returns when they are learned, and the session has its answer."""
    for _ in range(transitions):
        beside.learn(AgentEpisode(b"session"), None)
    assert beside.when_learned(b"session", lambda: b"answer") is None
    assert replies.get(timeout=20) == (b"session", b"answer")


def test_an_actor_that_is_too_far_behind_gets_a_snapshot_first(beside, replies):
    learn_all(beside, replies, transitions=3)
    assert beside.act(lambda: None, latest=False) == 3
    assert beside.actor.agent.learned == 3


def test_an_actor_that_does_not_explore_acts_with_all_that_was_learned(beside, replies):
    learn_all(beside, replies, transitions=1)
    assert beside.act(lambda: None, latest=False) == 0
    assert beside.act(lambda: None, latest=True) == 1


def test_nothing_more_is_learned_of_an_episode_with_a_fault(beside, learner):
    beside.learn(AgentEpisode(b"session", fault=("agent.learn", "ZeroDivisionError")), None)
    beside.learn(AgentEpisode(b"other"), None)
    assert learner.reached[1].wait(20)
    beside.close()
    assert learner.learned == 1


def test_an_agent_that_cannot_be_saved_answers_although_nothing_is_learned_beside_any_more(tmp_path):
    """A reset that fails keeps the runtime which it has closed."""
    source = AgentSource(entry=f"{__name__}:Actor", params={}, seed=1, state_path=tmp_path / "a.state")
    spaces = (SPACE, SPACE)
    runtime = AgentRuntime(source, spaces=spaces, name="walker", reply=lambda *_: None)
    runtime.bind(2)
    assert runtime.end([AgentEpisode(b"one")], lambda: b"later", session=b"one") is None
    source.state_path.mkdir()
    with pytest.raises(ConductorError, match="cannot be saved"):
        runtime.close()
    assert runtime.end([AgentEpisode(b"one")], lambda: b"now", session=b"one") == b"now"


def test_a_snapshot_that_hangs_is_that_of_the_episodes_that_act(tmp_path):
    source = AgentSource(entry=f"{__name__}:Actor", params={}, seed=1, state_path=tmp_path / "a.state")
    runtime = AgentRuntime(source, spaces=(SPACE, SPACE), name="walker", reply=lambda *_: None)
    runtime.bind(1)
    learned, acting = AgentEpisode(b"one", number=1), AgentEpisode(b"one", number=2)
    loading, all_learned = [], threading.Event()
    runtime._strategy._load = lambda _: loading.append(runtime.describe())
    learned.action = acting.observation = 0
    for _ in range(2):
        runtime.learn(learned, None)
    runtime.end([learned], lambda: all_learned.set() or b"", session=b"one")
    assert all_learned.wait(20)
    runtime.act([acting], explore=False)
    assert loading == ["agent.act of episode 2"]
    runtime.close()
