"""The policy-gradient agent solves CartPole; its state determines its further actions."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from governor.episodes.transition import Transition
from tests.support.pages.example_runs import examples_path, result_of


@pytest.fixture
def agent(monkeypatch):
    monkeypatch.syspath_prepend(str(examples_path("cartpole")))
    from policy_gradient import PolicyGradient

    return lambda **params: PolicyGradient(Box(-1, 1, (2,)), Discrete(2), 0, **params)


def step(at, action, *, reward=0.0, end=False):
    see = np.array([1.0, at], np.float32)
    after = np.array([1.0, at + 1], np.float32)
    return Transition(
        observation=see, action=action, reward=reward, next_observation=after, terminated=end, truncated=False
    )


@pytest.mark.long
@pytest.mark.system
def test_it_solves_cartpole(tmp_path):
    result = result_of("cartpole", tmp_path)
    train, evaluate = result["phases"]
    assert (result["outcome"], train["end"]) == ("finished", "until")
    assert sum(evaluate["episodes"].values()) == 100
    assert set(evaluate["episodes"]) <= {"terminated", "truncated"}
    assert evaluate["metrics"]["return_mean"] >= 195


def test_a_rewarded_action_becomes_more_probable(agent):
    made = agent(batch=4)
    for _ in range(40):
        action = made.act(np.array([1.0, 0.0]), explore=True)
        made.learn(step(0, action, reward=float(action == 1), end=True))
    assert made.updates == 10
    assert made.act(np.array([1.0, 0.0]), explore=False) == 1


def test_steps_of_an_episode_without_an_end_are_dropped(agent):
    whole, broken = agent(batch=1), agent(batch=1)
    for at in (5, 6):
        broken.learn(step(at, 1, reward=9.0))
    for made in (whole, broken):
        made.learn(step(0, 0, reward=1.0))
        made.learn(step(1, 1, reward=2.0, end=True))
    assert whole.updates == 1
    assert (whole.weights == broken.weights).all()
    assert whole.weights.any()


def test_an_agent_with_the_loaded_state_acts_the_same(agent):
    first, other = agent(batch=1), agent(batch=1)
    first.learn(step(0, 0, reward=1.0))
    first.learn(step(1, 1, end=True))
    other.load_state_dict(first.state_dict())
    for made in (first, other):
        made.learn(step(0, 1, reward=1.0))
        made.learn(step(1, 0, end=True))
    assert (first.weights == other.weights).all()
    see = np.array([0.5, -0.5])
    assert [first.act(see, explore=True) for _ in range(20)] == [
        other.act(see, explore=True) for _ in range(20)
    ]
