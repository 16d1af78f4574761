import json
import logging
from statistics import mean

import analysis
import gymnasium
import numpy as np
import pytest
from q_learner import QLearner

from governor.episodes.transition import Transition
from governor.tasks import TaskContext


def play(environment, agent, *, seed=None, explore=True):
    observation, _ = environment.reset(seed=seed)
    total = 0.0
    for _ in range(100):
        action = agent.act(observation, explore=explore)
        after, reward, terminated, truncated, _ = environment.step(action)
        if explore:
            agent.learn(
                Transition(
                    observation=observation,
                    action=action,
                    reward=float(reward),
                    next_observation=after,
                    terminated=terminated,
                    truncated=truncated,
                )
            )
        observation, total = after, total + float(reward)
        if terminated or truncated:
            break
    return total


def learned(seed):
    """Number of episodes until the mean of the last 50 returns is 0.95, the agent, and its environment."""
    environment = gymnasium.make("FrozenLake-v1", is_slippery=False)
    agent = QLearner(environment.observation_space, environment.action_space, seed)
    returns = []
    while len(returns) < 400 and (len(returns) < 50 or mean(returns[-50:]) < 0.95):
        returns.append(play(environment, agent, seed=seed * 1000 + len(returns)))
    return len(returns), agent, environment


def test_it_learns_within_100_episodes_with_any_seed():
    for seed in range(10):
        episodes, agent, environment = learned(seed)
        assert episodes <= 100
        assert play(environment, agent, explore=False) == 1.0


def test_an_agent_with_the_loaded_state_acts_the_same():
    _, agent, environment = learned(0)
    other = QLearner(environment.observation_space, environment.action_space, seed=99)
    other.load_state_dict(agent.state_dict())
    for observation in range(16):
        assert other.act(observation, explore=False) == agent.act(observation, explore=False)
        assert other.act(observation, explore=True) == agent.act(observation, explore=True)


def test_a_terminated_step_has_no_future_return():
    agent = QLearner(gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2), 0, alpha=1.0, gamma=0.5)
    step = {"observation": 0, "action": 1, "reward": 0.25, "next_observation": 1}
    agent.learn(Transition(**step, terminated=True, truncated=False))
    assert agent.values[0, 1] == 0.25
    agent.learn(Transition(**step, terminated=False, truncated=True))
    assert agent.values[0, 1] == 0.75


def context(folder, run_id=0):
    return TaskContext(
        run="u", task="t", run_id=run_id, attempt=1, deadline=None, run_folder=folder, log=logging.getLogger()
    )


def test_the_analysis_reads_recorded_episodes(tmp_path):
    (tmp_path / "episodes").mkdir()
    rows = [
        {"index": 1, "value": 1.0, "outcome": "terminated"},
        {"index": 0, "value": 0.0, "outcome": "truncated"},
        {"index": 2, "value": 9.0, "outcome": "failed"},
    ]
    (tmp_path / "episodes" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = analysis.load(["train"], context(tmp_path))
    assert loaded == {"train": [0.0, 1.0]}
    fits = [analysis.fit({"load": loaded}, context(tmp_path, run_id)) for run_id in (0, 1)]
    assert fits[0] == {"train_low": 0.0, "train_high": 1.0}
    assert analysis.fit({"load": loaded}, context(tmp_path)) == fits[0]
    result = analysis.compare({"load": loaded, "fit": fits})
    assert result.metrics == {"train_mean": 0.5, "train_low": 0.0, "train_high": 1.0}


def test_the_bootstrap_covers_the_mean():
    returns = np.random.default_rng(1).normal(3.0, 1.0, size=400)
    means = analysis.bootstrap(returns, resamples=2000, seed=0)
    assert means.mean() == pytest.approx(returns.mean(), abs=0.01)
    assert means.std() == pytest.approx(returns.std() / 20, rel=0.1)
    with pytest.raises(ValueError, match="no complete episode"):
        analysis.bootstrap(np.array([]), resamples=1, seed=0)
