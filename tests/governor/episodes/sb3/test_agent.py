"""State, params and refusals; steps of several workers that do not keep pace."""

import tempfile

import pytest

sb3 = pytest.importorskip("stable_baselines3")
import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from gymnasium import spaces  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402

from governor.episodes.records import state_file  # noqa: E402
from governor.episodes.sb3 import Agent, load_model  # noqa: E402
from governor.episodes.transition import Episode, Transition  # noqa: E402
from governor.errors import ConductorError  # noqa: E402
from tests.governor.episodes.sb3.playing import Lockstep  # noqa: E402
from tests.governor.episodes.sb3.test_same_as_learn import PENDULUM, POLE, same, weights  # noqa: E402

pytestmark = pytest.mark.long
VECTOR = spaces.Box(-1, 1, (3,))


def agent(environment, *, seed=5, **params):
    made = gymnasium.make(environment) if isinstance(environment, str) else environment
    return Agent(
        made.observation_space,
        made.action_space,
        seed,
        **{"total_timesteps": 10_000, "device": "cpu", **params},
    )


@pytest.mark.parametrize(
    ("environment", "first", "params"),
    [
        (POLE, 8, {"algorithm": "PPO", "n_steps": 128}),
        (POLE, 8, {"algorithm": "PPO", "n_steps": 128, "normalize": True}),
        (POLE, 8, {"algorithm": "DQN"}),
        (POLE, 8, {"algorithm": "DQN", "buffer_size": 150}),
        (PENDULUM, 1, {"algorithm": "SAC", "policy_kwargs": {"net_arch": [16]}}),
        (
            PENDULUM,
            1,
            {"algorithm": "TD3", "policy_kwargs": {"net_arch": [16]}, "normalize": {"norm_reward": False}},
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_from_its_state_an_agent_learns_on_as_if_nothing_had_been(environment, first, params):
    play = Lockstep(lambda: gymnasium.make(environment))
    going_on = play.play(agent(environment, **params), first, until_end=True)
    data = state_file.dumps_verified(going_on.state_dict())
    again = Lockstep(lambda: gymnasium.make(environment))
    again.numbers = list(play.numbers)
    at = weights(going_on.model)
    play.play(going_on, first, until_end=True)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002  # what the state restores
    new = agent(environment, seed=8, **params)
    new.load_state_dict(state_file.loads(data))
    again.play(new, first, until_end=True)
    assert new.model.num_timesteps == going_on.model.num_timesteps
    assert new.weight_version == going_on.weight_version > 0
    assert not same(at, weights(new.model))
    assert same(weights(new.model), weights(going_on.model))


@pytest.mark.parametrize("verbose", [0, 1])
def test_its_log_is_its_output_and_leaves_no_folder(verbose, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = agent(POLE, algorithm="PPO", n_steps=64, verbose=verbose, policy_kwargs={"net_arch": [16]})
    Lockstep(lambda: gymnasium.make(POLE)).play(made, 130)
    assert ("approx_kl" in capsys.readouterr().out) == bool(verbose)
    assert not list(tmp_path.iterdir())


def test_without_its_replay_buffer_a_state_is_small():
    made, small = (agent(PENDULUM, algorithm="SAC", save_replay_buffer=save) for save in (True, False))
    for each in (made, small):
        Lockstep(lambda: gymnasium.make(PENDULUM)).play(each, 90)
    assert "replay_buffer" not in small.state_dict()
    assert made.state_dict()["replay_buffer"]["pos"] == 90
    new = agent(PENDULUM, algorithm="SAC")
    new.load_state_dict(state_file.loads(state_file.dumps(small.state_dict())))
    assert new.model.replay_buffer.size() == 0
    assert new.model.num_timesteps == 90


def test_the_newest_steps_fit_into_a_smaller_replay_buffer():
    big, small = agent(PENDULUM, algorithm="SAC"), agent(PENDULUM, algorithm="SAC", buffer_size=30)
    Lockstep(lambda: gymnasium.make(PENDULUM)).play(big, 70)
    small.load_state_dict(state_file.loads(state_file.dumps(big.state_dict())))
    buffer = small.model.replay_buffer
    assert (buffer.full, buffer.pos) == (True, 0)
    assert (buffer.observations == big.model.replay_buffer.observations[40:70]).all()


def test_a_state_is_a_model_of_stable_baselines3(tmp_path):
    made = agent(POLE, algorithm="PPO", n_steps=256, normalize=True, policy_kwargs={"net_arch": [16]})
    Lockstep(lambda: gymnasium.make(POLE)).play(made, 600)
    path = tmp_path / "learner.state"
    state_file.save(path, made.state_dict())
    model = load_model(path, device="cpu")
    assert type(model) is sb3.PPO
    assert same(weights(model), weights(made.model))
    statistics = model.get_vec_normalize_env().obs_rms
    assert (statistics.mean == made.model.get_vec_normalize_env().obs_rms.mean).all()
    model.save(tmp_path / "model.zip")
    loaded = sb3.PPO.load(tmp_path / "model.zip", env=gymnasium.make(POLE))
    assert same(weights(loaded), weights(made.model))
    evaluate_policy(loaded, loaded.get_env(), n_eval_episodes=1)
    loaded.learn(256)
    begun = agent(POLE, algorithm="PPO", model=str(tmp_path / "model.zip"), total_timesteps=None)
    assert same(weights(begun.model), weights(made.model))
    with pytest.raises(ConductorError, match="is not there"):
        load_model(tmp_path / "other.state")
    state_file.save(path, {"weights": 1})
    with pytest.raises(ConductorError, match=r"is none of governor.episodes.sb3:Agent"):
        load_model(path)


def test_an_actor_with_the_learners_weights_acts_as_it_does_and_keeps_its_generators():
    learner = agent(POLE, algorithm="DQN", exploration_fraction=0.5)
    actor = agent(POLE, algorithm="DQN", exploration_fraction=0.5)
    Lockstep(lambda: gymnasium.make(POLE)).play(learner, 300)
    before = torch.get_rng_state()
    actor.load_weights(state_file.loads(state_file.dumps(learner.weights())))
    assert torch.equal(before, torch.get_rng_state())
    assert same(weights(actor.model), weights(learner.model))
    assert actor.model.exploration_rate == learner.model.exploration_rate < 1
    assert actor.weight_version == learner.weight_version
    assert "replay_buffer" not in learner.weights()


def test_a_state_of_another_algorithm_is_refused():
    state = agent(POLE, algorithm="PPO").state_dict()
    with pytest.raises(ValueError, match="it is a state of PPO, and this agent is A2C"):
        agent(POLE, algorithm="A2C").load_state_dict(state)


# -- several workers ------------------------------------------------------------------------------------------


class Steps:
    """One step after the other of any worker, in an environment of numbers."""

    def __init__(self, made, workers):
        self.agent = made
        self.workers = workers
        self.at = {}

    def begin(self, worker):
        self.at[worker] = 0
        self.agent.begin(Episode(number=0, phase="p", seed=0, worker=worker, workers=self.workers))

    def step(self, worker, *, end="", reward=1.0):
        at = self.at[worker]
        self.at[worker] += 1
        seen, following = (np.full(4, (at + plus) / 100 + worker, np.float32) for plus in (0, 1))
        action, extras = self.agent.act(seen, explore=True, worker=worker)
        self.agent.learn(
            Transition(
                observation=seen, action=action, reward=reward, next_observation=following, worker=worker,
                terminated=end == "terminated", truncated=end == "truncated", step=at, extras=extras,
            )
        )  # fmt: skip


def test_a_rollout_is_full_when_all_workers_together_have_their_steps():
    made = agent(POLE, algorithm="PPO", n_steps=8, batch_size=16, n_epochs=1, gamma=0.5, gae_lambda=1.0)
    play = Steps(made, workers=2)
    for worker in (0, 1):
        play.begin(worker)
    for _ in range(5):
        play.step(1)
    play.step(1, end="terminated")
    play.begin(1)
    for _ in range(9):
        play.step(0)
    assert made.weight_version == 0
    play.step(1)
    assert made.weight_version == 1
    buffer = made.model.rollout_buffer
    starts = np.array([1.0, *[0.0] * 8, 1.0, *[0.0] * 5, 1.0])
    assert (columns(buffer.episode_starts) == starts).all()
    ended = [sum(0.5**k for k in range(left)) for left in range(6, 0, -1)]
    assert np.allclose(columns(buffer.returns)[9:15], ended, atol=1e-5), "nothing follows what is terminated"
    assert not np.allclose(columns(buffer.returns)[8], 1.0), "what follows the last step counts"


def test_what_follows_an_episode_that_failed_is_no_part_of_it():
    made = agent(POLE, algorithm="PPO", n_steps=4, batch_size=4, n_epochs=1)
    play = Steps(made, workers=1)
    play.begin(0)
    for _ in range(2):
        play.step(0)
    play.begin(0)  # the environment has raised
    play.step(0, reward=1000.0)
    assert made.weight_version == 0
    with torch.no_grad():
        behind = made.model.policy.predict_values(torch.full((1, 4), 0.02)).item()
    play.step(0)
    assert made.weight_version == 1
    assert columns(made.model.rollout_buffer.returns)[1] == pytest.approx(1 + 0.99 * behind, abs=1e-4)


def test_train_freq_counts_the_steps_of_each_worker():
    made = agent(POLE, algorithm="DQN", learning_starts=0, train_freq=4, gradient_steps=-1, batch_size=4)
    play = Steps(made, workers=3)
    for worker in range(3):
        play.begin(worker)
    for step in range(11):
        play.step(step % 2)
    assert made.model._n_updates == 0
    play.step(2)
    assert made.model._n_updates == 12


def test_a_buffer_in_order_gets_whole_episodes_of_several_workers():
    made = agent(POLE, algorithm="DQN", n_steps=3)
    play = Steps(made, workers=2)
    for worker in (0, 1):
        play.begin(worker)
    for _ in range(3):
        play.step(0)
        play.step(1)
    play.begin(0)  # of the episode before, which failed, nothing is kept
    buffer = made.model.replay_buffer
    assert buffer.size() == 0
    play.step(1, end="truncated")
    assert columns(buffer.observations[:4, 0, 0]).round().tolist() == [1.0] * 4
    assert columns(buffer.timeouts)[:4].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert (buffer.size(), made.model.num_timesteps) == (4, 7)


def columns(array):
    return np.asarray(array).swapaxes(0, -1).reshape(-1) if np.ndim(array) > 1 else np.asarray(array)


# -- spaces ---------------------------------------------------------------------------------------------------


class Places:
    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (36, 36, 3), np.uint8), "place": spaces.Discrete(5)}
    )
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, seed=None):
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), float(action[0]), self.steps % 7 == 0, False, {}


@pytest.mark.parametrize("act_many", [False, True])
def test_observations_with_parts_and_images(act_many):
    made = agent(Places(), algorithm="PPO", policy="MultiInputPolicy", n_steps=16, batch_size=16, n_epochs=1)
    play = Lockstep(Places, 2)
    play.play(made, 20)
    assert made.weight_version == 1
    new = agent(Places(), algorithm="PPO", policy="MultiInputPolicy", n_steps=16, batch_size=16, n_epochs=1)
    new.load_state_dict(state_file.loads(state_file.dumps_verified(made.state_dict())))
    seen, _ = Places().reset(seed=3)
    if act_many:
        batch = {key: np.stack([value] * 2) for key, value in seen.items()}
        actions = made.act_many(batch, explore=False, worker=np.arange(2))
        assert np.shape(actions) == (2, 2)
        assert (actions == new.act(seen, explore=False)).all()
    else:
        assert (made.act(seen, explore=False) == new.act(seen, explore=False)).all()


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"algorithm": "PPOO"}, ValueError, "'PPOO' is none that learns step by step: A2C, DDPG, DQN, PPO"),
        ({"algorithm": "sb3_contrib.RecurrentPPO"}, ValueError, "loop over environments of its own"),
        ({"algorithm": "sb3_contrib.MaskablePPO"}, ValueError, "loop over environments of its own"),
        ({"algorithm": "sb3_contrib.ARS"}, ValueError, "is none that learns step by step"),
        ({"algorithm": "PPO", "model": "none.zip"}, ValueError, r"the model 'none.zip' is not there \(in /"),
        ({"algorithm": "nowhere.PPO"}, ImportError, "No module named 'nowhere'"),
        ({"algorithm": "DQN"}, ValueError, "exploration_fraction depends on the progress"),
        (
            {"algorithm": "PPO", "learning_rate": "lin_3e-4"},
            ValueError,
            "learning_rate depends on the progress",
        ),
        ({"algorithm": "PPO", "nsteps": 3}, TypeError, "unexpected keyword argument 'nsteps'"),
        (
            {"algorithm": "DQN", "replay_buffer_class": {"entry": "stable_baselines3:HerReplayBuffer"}},
            ValueError,
            "compute_reward",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_trained_is_refused(params, error, message):
    with pytest.raises(error, match=message):
        agent(POLE, **{"total_timesteps": None, **params})


def test_actions_that_do_not_begin_at_0_are_refused():
    with pytest.raises(ValueError, match="counts actions from 0"):
        Agent(VECTOR, spaces.Discrete(3, start=1), 0, algorithm="PPO")
