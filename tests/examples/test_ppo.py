"""PPO in one file learns to balance the pole; its advantages are those of the definition."""

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from governor.episodes.records import state_file
from tests.support.pages.example_runs import examples_path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.long


@pytest.fixture
def agent(monkeypatch):
    monkeypatch.syspath_prepend(str(examples_path("ppo")))
    from ppo import PPO

    return lambda **params: PPO(Box(-1, 1, (2,)), Discrete(2), 0, **params)


@pytest.mark.system
@pytest.mark.timeout(400)
def test_it_learns_to_balance_the_pole(play_and_look):
    result = play_and_look("ppo", "train.until.0.at_least=200")
    train, evaluate = result["phases"]
    assert (result["outcome"], train["end"]) == ("finished", "until")
    assert evaluate["metrics"]["return_mean"] >= 150


def rollout(made, steps):
    """`steps` of two environments; the first is terminated at 1, the second cut at 2."""
    random = np.random.default_rng(1)
    seen, following = (random.random((steps, 2, 2)).astype(np.float32) for _ in range(2))
    actions, extras = made.act_many(seen.reshape(-1, 2), explore=True)
    terminated, ends = np.zeros((steps, 2), bool), np.zeros((steps, 2), bool)
    terminated[1, 0] = ends[1, 0] = ends[2, 1] = True
    return SimpleNamespace(
        observation=seen, next_observation=following, action=actions.reshape(steps, 2), terminated=terminated, ends=ends,
        reward=random.random((steps, 2)), extras={name: each.reshape(steps, 2) for name, each in extras.items()},
    )  # fmt: skip


def test_advantages_reach_to_the_end_of_an_episode_and_no_further(agent):
    made = agent(gamma=0.9, gae_lambda=0.8)
    played = rollout(made, 4)
    value = torch.as_tensor(played.extras["value"])
    found = made._advantages(played, value).numpy()
    with torch.no_grad():
        following = made.critic(torch.as_tensor(played.next_observation))[..., 0].numpy()
    error = played.reward + 0.9 * following * ~played.terminated - played.extras["value"]
    discount = 0.9 * 0.8
    assert found[3] == pytest.approx(error[3], abs=1e-5)
    assert found[1, 0] == pytest.approx(error[1, 0], abs=1e-5)
    assert found[0, 0] == pytest.approx(error[0, 0] + discount * error[1, 0], abs=1e-5)
    assert found[2, 1] == pytest.approx(error[2, 1], abs=1e-5)
    assert found[1, 1] == pytest.approx(error[1, 1] + discount * error[2, 1], abs=1e-5)
    assert error[1, 0] == pytest.approx(played.reward[1, 0] - played.extras["value"][1, 0], abs=1e-5)


def test_with_the_loaded_state_it_learns_the_same(agent):
    first, other = agent(rollout_steps=4), agent(rollout_steps=4)
    played = rollout(first, 4)
    first.learn_batch(played)
    other.load_state_dict(state_file.loads(state_file.dumps_verified(first.state_dict())))
    state = torch.get_rng_state()
    first.learn_batch(played)
    torch.set_rng_state(state)
    other.learn_batch(played)
    some, others = first.net.state_dict(), other.net.state_dict()
    assert all(torch.equal(some[name], others[name]) for name in some)
    assert (first.update, other.update) == (2, 2)
