"""PPO on four workers and DQN learn to balance the pole."""

import pytest

from tests.support.example_runs import result_of

pytest.importorskip("stable_baselines3")


@pytest.mark.long
@pytest.mark.system
@pytest.mark.timeout(1200)
def test_both_algorithms_learn(tmp_path):
    result = result_of("stable_baselines3", tmp_path, seconds=1150)
    ppo, dqn, evaluated_ppo, evaluated_dqn = result["phases"]
    assert (result["outcome"], ppo["end"], dqn["end"]) == ("finished", "until", "until")
    assert all(any("train/loss" in name for name in phase["metrics"]) for phase in (ppo, dqn))
    assert evaluated_ppo["metrics"]["return_mean"] >= 300
    assert evaluated_dqn["metrics"]["return_mean"] >= 100
