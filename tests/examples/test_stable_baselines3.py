"""PPO on four workers and DQN learn, PPO until it balances the pole for a while."""

import pytest

pytest.importorskip("stable_baselines3")


@pytest.mark.long
@pytest.mark.system
@pytest.mark.timeout(400)
def test_both_algorithms_learn(play_and_look):
    result = play_and_look("stable_baselines3", "ppo.until.0.at_least=150", "dqn.simulate.episodes=120")
    ppo, dqn, evaluated_ppo, evaluated_dqn = result["phases"]
    assert (result["outcome"], ppo["end"], dqn["end"]) == ("finished", "until", "max_episodes")
    assert all(any("train/loss" in name for name in phase["metrics"]) for phase in (ppo, dqn))
    assert evaluated_ppo["metrics"]["return_mean"] >= 100
    assert evaluated_dqn["metrics"]["return_mean"] > 0
