"""What `governor check` says of algorithms of Stable-Baselines3, which it does not import."""

import pytest

from governor.units.sections import spell
from tests.support.run_files import faults_in

PARAMS = "conductors.agents.learner.params."
KNOWN = (
    "A2C, DDPG, DQN, PPO, SAC, TD3, sb3_contrib.CrossQ, sb3_contrib.QRDQN, sb3_contrib.TQC, sb3_contrib.TRPO"
)


def faults(entry="governor.episodes.sb3:Agent", **params):
    simulate = {"environment": "pole", "agents": ["learner"], "episodes": 3}
    conductors = {
        "environments": {"pole": {"entry": "gymnasium:CartPole-v1"}},
        "agents": {"learner": {"entry": entry, "params": params}},
    }
    run = {"name": "t", "conductors": conductors, "phases": [{"name": "train", "simulate": simulate}]}
    return {spell(path).removeprefix(PARAMS): message for path, message in faults_in(run)}


@pytest.mark.parametrize(
    "algorithm",
    [
        "PPO",
        "stable_baselines3.DQN",
        "sb3_contrib.TQC",
        "sb3_contrib:TRPO",
        "mine.PPOO",
        "mine:Ppo",
        "sb3_contrib.tqc.TQC",
    ],
)
def test_what_may_run_has_no_faults(algorithm):
    assert faults(algorithm=algorithm, learning_rate="lin_0.001", policy_kwargs={"net_arch": [8]}) == {}


@pytest.mark.parametrize(
    ("algorithm", "hint"),
    [
        ("ppo", "; did you mean 'PPO'?"),
        ("PPO2", "; did you mean 'PPO'?"),
        ("TQC", "; did you mean 'sb3_contrib.TQC'?"),
        ("sb3_contrib.PPO", "; did you mean 'PPO'?"),
        ("sb3_contrib.qrdqn", "; did you mean 'sb3_contrib.QRDQN'?"),
        ("sb3_contrib.MaskablePPO", ": it has a loop over environments of its own, which cannot be replaced"),
        ("Evolution", f"; there is {KNOWN}"),
    ],
)
def test_an_algorithm_that_is_not_there(algorithm, hint):
    assert faults(algorithm=algorithm) == {"algorithm": f"unknown algorithm {algorithm!r}{hint}"}


def test_a_param_that_is_misspelled():
    assert faults(algorithm="PPO", lerning_rate=0.1, n_step=64) == {
        "lerning_rate": "is no param of an algorithm; did you mean 'learning_rate'?",
        "n_step": "is no param of an algorithm; did you mean 'n_steps'?",
    }
    assert faults(algorithm="PPO", of_a_newer_release=1) == {}
    assert faults(algorithm="mine.PPO", lerning_rate=0.1) == {}
    assert faults(algorithm="PPO", model="ppo.zip", n_step=64) == {}


def test_a_count_that_is_no_whole_number():
    assert faults(
        algorithm="PPO", n_steps=100.0, total_timesteps=-5, batch_size=64.5, n_epochs=True, log_interval="2"
    ) == {
        "n_steps": "100.0 is no whole number of 1 or more: write 100",
        "total_timesteps": "-5 is no whole number of 1 or more",
        "batch_size": "64.5 is no whole number of 1 or more",
        "n_epochs": "True is no whole number of 1 or more",
        "log_interval": "'2' is no whole number of 1 or more",
    }
    assert faults(algorithm="DQN", buffer_size=1, total_timesteps=None, learning_starts=0) == {}


def test_agents_of_other_kinds_may_have_any_params():
    assert faults(entry="mine:Agent", algorithm="ppo", lerning_rate=0.1) == {}
