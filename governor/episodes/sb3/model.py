"""From the params of a run file to a model of Stable-Baselines3.

Rules:
1. A param is the algorithm's own keyword argument. What is not plain data is written as in the run file:
   `{entry: "module:name"}` is that object (a class, a function), with `params` it is called with them. `lin_0.001` is a
   schedule that falls from 0.001 to 0, as in RL Zoo.
2. A model is refused if it would not learn as `model.learn` does: an algorithm with a `collect_rollouts` of its own, a buffer
   that asks the environment.
"""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import stable_baselines3
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.logger import HumanOutputFormat, Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from governor.episodes.entries import load

if TYPE_CHECKING:
    from collections.abc import Sequence

LINEAR: Final = r"lin_[0-9.]+(e-?[0-9]+)?"
UNBOUNDED: Final = 2**62
"""Steps in all, where the params do not say how many."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The params that are not the algorithm's own; see docs/stable-baselines3.md."""

    algorithm: str
    model: str | None = None
    total_timesteps: int | None = None
    log_interval: int | None = None
    normalize: bool | dict[str, Any] = False
    save_replay_buffer: bool = True
    params: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As keyword arguments of `Agent`."""
        known = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "params"}
        return {**known, **self.params}


class HandedOver(VecEnv):  # type: ignore[misc]  # of a package that the checks do not have
    """The environment of a model: one stream, whose values are set before they are asked for. It makes of a step what
    `DummyVecEnv` makes of it, and SB3's wrappers (of images, `VecNormalize`) see it like any other.
    """

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        super().__init__(1, observation_space, action_space)
        self.observation: Any = None
        self._step: tuple[float, bool, bool] = (0.0, False, False)

    def set(
        self, observation: Any, *, reward: float = 0.0, terminated: bool = False, truncated: bool = False
    ) -> None:
        """`observation` is that after the step, also of the last one of an episode."""
        self.observation = _as_batch(observation, self.observation_space)
        self._step = reward, terminated, truncated

    def reset(self) -> Any:
        if self.observation is None:  # for `_setup_learn`; nothing acts on it
            self.set(self.observation_space.sample())
        return self.observation

    def step_async(self, actions: Any) -> None:
        """The action was taken elsewhere."""

    def step_wait(self) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
        reward, terminated, truncated = self._step
        info: dict[str, Any] = {"TimeLimit.truncated": truncated and not terminated}
        done = terminated or truncated
        if done:
            seen = self.observation
            info["terminal_observation"] = (
                {key: value[0] for key, value in seen.items()} if isinstance(seen, dict) else seen[0]
            )
        return self.observation, np.array([reward], np.float32), np.array([done]), [info]

    def close(self) -> None:
        """There is nothing to close."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ARG002  # VecEnv's own signature
        return [getattr(self, attr_name, None)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: ARG002  # likewise
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *_args: Any, indices: Any = None, **_kwargs: Any) -> list[Any]:  # noqa: ARG002  # likewise
        raise ValueError(f"{method_name} of the environment: the agent's process does not have it")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: ARG002  # likewise
        return [False]


def _as_batch(observation: Any, space: spaces.Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _as_batch(observation[key], inner) for key, inner in space.spaces.items()}
    return np.array(observation, dtype=space.dtype)[None]


def batch_of(observations: Sequence[Any]) -> Any:
    """Batches of one, as one batch."""
    if len(observations) == 1:
        return observations[0]
    if isinstance(observations[0], dict):
        return {key: np.concatenate([each[key] for each in observations]) for key in observations[0]}
    return np.concatenate(observations)


def make(
    settings: Settings, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], *, seed: int
) -> Any:
    """The model, ready to act. Raises ValueError and ImportError in one line, and what Stable-Baselines3 raises."""
    algorithm = _algorithm(settings.algorithm)
    start = getattr(action_space, "start", 0)
    if np.any(start != 0):
        raise ValueError(f"Stable-Baselines3 counts actions from 0, and this environment from {start}")
    params = {name: _resolved(value) for name, value in settings.params.items()}
    if issubclass(params.get("replay_buffer_class", object), HerReplayBuffer):
        raise ValueError(  # noqa: TRY004  # of the run file, as the next one
            "HerReplayBuffer asks the environment for rewards (compute_reward), which the agent's process does not have"
        )
    if isinstance(params.get("train_freq"), list):
        params["train_freq"] = tuple(params["train_freq"])
    environment: Any = HandedOver(observation_space, action_space)
    if settings.normalize:
        own = settings.normalize if isinstance(settings.normalize, dict) else {}
        environment = VecNormalize(environment, **{"gamma": params.get("gamma", 0.99), **own})
    seed %= 2**32  # what numpy takes
    # It speaks of a rollout of one environment; how many there are is known later
    warnings.filterwarnings("ignore", "You have specified a mini-batch size")
    if settings.model is None:
        model = algorithm(env=environment, seed=seed, **{"policy": "MlpPolicy", **params})
    else:
        if not any(Path(settings.model + ending).exists() for ending in ("", ".zip")):
            raise ValueError(f"the model {settings.model!r} is not there (in {Path.cwd()})")
        model = algorithm.load(settings.model, env=environment, **params)
        model.set_random_seed(seed)
    _check_schedules(model, settings)
    normalize = model.get_vec_normalize_env()
    if normalize is not None:
        normalize.training = False  # what `_setup_learn` resets is no episode
    if (
        model.tensorboard_log is None
    ):  # else Stable-Baselines3's own, which leaves a folder in the temporary one
        model.set_logger(Logger(None, [HumanOutputFormat(sys.stdout)] if model.verbose else []))
    total = UNBOUNDED if settings.total_timesteps is None else settings.total_timesteps
    model._setup_learn(total, tb_log_name=settings.algorithm)
    if normalize is not None:
        normalize.training = True
    return model


def _algorithm(name: str) -> Any:
    """`PPO`, `sb3_contrib.TQC`, `my_module:MyPPO`. Raises ValueError, and ImportError."""
    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        found = getattr(import_module(module or "stable_baselines3"), attribute, None)
    except ModuleNotFoundError as error:
        hint = ": pip install sb3-contrib" if error.name == "sb3_contrib" else ""
        raise ImportError(f"algorithm {name!r}: {error}{hint}") from error
    if not (isinstance(found, type) and issubclass(found, OnPolicyAlgorithm | OffPolicyAlgorithm)):
        known = [
            each
            for each, value in vars(stable_baselines3).items()
            if isinstance(value, type) and issubclass(value, OnPolicyAlgorithm | OffPolicyAlgorithm)
        ]
        raise ValueError(  # noqa: TRY004
            f"algorithm {name!r} is none that learns step by step: {', '.join(sorted(known))}, or one of "
            "another module, such as sb3_contrib.TQC"
        )
    base = OnPolicyAlgorithm if issubclass(found, OnPolicyAlgorithm) else OffPolicyAlgorithm
    if getattr(found, "collect_rollouts", None) is not base.collect_rollouts:
        raise ValueError(
            f"algorithm {name!r} has a loop over environments of its own (collect_rollouts), which cannot be replaced: "
            "hidden states and action masks of sb3_contrib are not supported"
        )
    return found


def _resolved(value: Any) -> Any:
    """Rule 1."""
    match value:
        case str() if re.fullmatch(LINEAR, value):
            return LinearSchedule(float(value.partition("_")[2]), 0.0, 1.0)
        case list():
            return [_resolved(item) for item in value]
        case {"entry": str(entry), "params": dict(given), **rest} if not rest:
            return load(entry)(**{name: _array(_resolved(item)) for name, item in given.items()})
        case {"entry": str(entry), **rest} if not rest:
            return load(entry)
        case dict():
            return {name: _resolved(item) for name, item in value.items()}
        case _:
            return value


def _array(value: Any) -> Any:
    """Lists of numbers as arrays: the noise of actions computes with its arguments."""
    numbers = isinstance(value, list) and all(isinstance(item, int | float) for item in value)
    return np.array(value, np.float32) if numbers and value else value


def _check_schedules(model: Any, settings: Settings) -> None:
    """Raises ValueError for what depends on a length of the training that is not given."""
    if settings.total_timesteps is not None:
        return
    scheduled = [
        name
        for name in ("learning_rate", "clip_range", "clip_range_vf")
        if callable(_resolved(settings.params.get(name)))
    ]
    if hasattr(model, "exploration_schedule"):
        scheduled.append("exploration_fraction")
    if scheduled:
        raise ValueError(
            f"{scheduled[0]} depends on the progress of the training: params need total_timesteps, the steps of "
            "the training in all, as model.learn does"
        )


def rows_of(observations: Any, count: int) -> list[Any]:
    """The observations of `act_many`, one by one."""
    if isinstance(observations, dict):
        return [{key: value[row] for key, value in observations.items()} for row in range(count)]
    return list(observations)
