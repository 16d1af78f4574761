"""PPO on four workers and DQN learn to balance the pole."""

import pytest

pytest.importorskip("stable_baselines3")


@pytest.mark.long
@pytest.mark.system
@pytest.mark.timeout(1200)
def test_both_algorithms_learn(play_and_look):
    result = play_and_look("stable_baselines3", seconds=1150)
    ppo, dqn, evaluated_ppo, evaluated_dqn = result["phases"]
    assert (result["outcome"], ppo["end"], dqn["end"]) == ("finished", "until", "until")
    assert all(any("train/loss" in name for name in phase["metrics"]) for phase in (ppo, dqn))
    assert evaluated_ppo["metrics"]["return_mean"] >= 300
    assert evaluated_dqn["metrics"]["return_mean"] >= 100
