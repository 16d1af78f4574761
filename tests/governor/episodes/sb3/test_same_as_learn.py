"""The weights are those of `model.learn` of Stable-Baselines3, bit by bit, with the same seeds of episodes."""

from itertools import count

import pytest

sb3 = pytest.importorskip("stable_baselines3")
import gymnasium  # noqa: E402
import sb3_contrib  # noqa: E402
import torch  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402

from governor.episodes.sb3 import Agent  # noqa: E402
from governor.episodes.sb3.model import _resolved  # noqa: E402
from tests.governor.episodes.sb3.playing import Lockstep, Seeded, seed_of  # noqa: E402

pytestmark = pytest.mark.long
POLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
NOISE = "stable_baselines3.common.noise"


def noise(name):
    return {"entry": f"{NOISE}:{name}", "params": {"mean": [0.0], "sigma": [0.2]}}


CASES = {
    "PPO": ("PPO", POLE, 1, 1024, {"n_steps": 256, "learning_rate": "lin_0.001", "clip_range": "lin_0.2"}),
    "PPO, normalized": ("PPO", POLE, 1, 1024, {"n_steps": 256, "normalize": True}),
    "PPO, episodes cut by a limit": ("PPO", PENDULUM, 1, 1024, {"n_steps": 256}),
    "PPO, a vector of 4": ("PPO", POLE, 4, 1024, {"n_steps": 128}),
    "PPO, gSDE in a vector": ("PPO", PENDULUM, 2, 1024, {"n_steps": 128, "use_sde": True, "sde_sample_freq": 4}),
    "A2C": ("A2C", POLE, 1, 600, {}),
    "A2C, a vector of 4": ("A2C", POLE, 4, 1000, {}),
    "DQN": ("DQN", POLE, 1, 1000, {"target_update_interval": 250, "buffer_size": 700}),
    "DQN, n-step returns": ("DQN", POLE, 1, 600, {"n_steps": 3}),
    "DQN, memory saved": (
        "DQN", POLE, 1, 600,
        {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}},
    ),
    "SAC": ("SAC", PENDULUM, 1, 250, {}),
    "SAC, gSDE": ("SAC", PENDULUM, 1, 250, {"use_sde": True, "sde_sample_freq": 8}),
    "TD3, by episode": (
        "TD3", PENDULUM, 1, 400,
        {"train_freq": [1, "episode"], "gradient_steps": -1, "action_noise": noise("OrnsteinUhlenbeckActionNoise")},
    ),
    "DDPG": ("DDPG", PENDULUM, 1, 250, {"action_noise": noise("NormalActionNoise")}),
    "TQC": ("sb3_contrib.TQC", PENDULUM, 1, 200, {}),
    "QRDQN": ("sb3_contrib.QRDQN", POLE, 1, 300, {}),
    "TRPO": ("sb3_contrib.TRPO", POLE, 1, 1024, {"n_steps": 256}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_weights_are_those_of_learn(case):
    algorithm, environment, workers, steps, params = CASES[case]
    params = {"policy_kwargs": {"net_arch": [16]}, **params}
    theirs = learned_by_them(algorithm, environment, workers, steps, dict(params))
    made = gymnasium.make(environment)
    ours = Agent(
        made.observation_space, made.action_space, 5, algorithm=algorithm, total_timesteps=steps, **params
    )
    untrained = weights(ours.model)
    Lockstep(lambda: gymnasium.make(environment), workers, act_many=workers > 1).play(ours, steps // workers)
    assert ours.model.num_timesteps == theirs.num_timesteps
    assert ours.model._n_updates == theirs._n_updates > 0
    assert weights(ours.model).keys() == weights(theirs).keys()
    assert not same(weights(ours.model), untrained)
    assert same(weights(ours.model), weights(theirs))


def learned_by_them(algorithm, environment, workers, steps, params):
    normalize = params.pop("normalize", False)
    if "train_freq" in params:
        params["train_freq"] = tuple(params["train_freq"])
    environments = DummyVecEnv([seeded(environment, worker) for worker in range(workers)])
    if normalize:
        environments = VecNormalize(environments)
    name = algorithm.rpartition(".")[2]
    made = getattr(sb3_contrib if "." in algorithm else sb3, name)
    return made("MlpPolicy", environments, seed=5, **_resolved(params)).learn(steps)


def seeded(environment, worker):
    return lambda: Seeded(gymnasium.make(environment), (seed_of(worker, number) for number in count()))


def weights(model):
    return {name: value.clone() for name, value in model.policy.state_dict().items()}


def same(some, others):
    return all(torch.equal(some[name], others[name]) for name in some)
