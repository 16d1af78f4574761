"""A model as plain data, arrays and tensors (`governor.episodes.records.state_file`), and back.

Rules:
1. `weights_of` is what is needed to act: parameters, optimizers, counters, statistics of `VecNormalize`. `rest_of` is what is
   needed to go on: replay buffer, random generators.
2. The generators are those of the process, as Stable-Baselines3 uses them: of Python, numpy, torch, and of the action space.
3. A replay buffer is stored as far as it is filled, in parts, because an array in a state file has a largest size.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import torch
from stable_baselines3.common.save_util import recursive_getattr, recursive_setattr

from governor.episodes import spaces
from governor.episodes.records import state_file
from governor.episodes.sb3 import model as models
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNTERS: Final = (
    "num_timesteps",
    "exploration_rate",
    "_current_progress_remaining",
    "_episode_num",
    "_n_calls",
    "_n_updates",
)
STATISTICS: Final = ("obs_rms", "ret_rms")
PART_BYTES: Final = 2**29


def weights_of(model: Any) -> dict[str, Any]:
    """Rule 1."""
    _, variables = model._get_torch_save_params()
    state = {
        "parameters": model.get_parameters(),
        "variables": {name: recursive_getattr(model, name) for name in variables},
        "counters": {name: _plain(getattr(model, name)) for name in COUNTERS if hasattr(model, name)},
    }
    normalize = model.get_vec_normalize_env()
    if normalize is not None:
        state["normalize"] = {
            name: _statistics(getattr(normalize, name)) for name in STATISTICS if hasattr(normalize, name)
        }
    return state


def load_weights(model: Any, state: Mapping[str, Any]) -> None:
    """Raises what Stable-Baselines3 and torch raise for parameters of another model."""
    model.set_parameters(state["parameters"], exact_match=True, device=model.device)
    for name, value in state["variables"].items():
        recursive_setattr(model, f"{name}.data", value.to(model.device))
    for name, value in state["counters"].items():
        setattr(model, name, value)
    normalize = model.get_vec_normalize_env()
    for name, value in state.get("normalize", {}).items() if normalize is not None else ():
        _set_statistics(getattr(normalize, name), value)
    if model.use_sde:
        model.policy.reset_noise()


def _statistics(of: Any) -> dict[str, Any]:
    if isinstance(of, dict):
        return {key: _statistics(each) for key, each in of.items()}
    return {name: np.asarray(getattr(of, name)) for name in ("mean", "var", "count")}


def _set_statistics(of: Any, state: Mapping[str, Any]) -> None:
    if isinstance(of, dict):
        for key, each in of.items():
            _set_statistics(each, state[key])
    else:
        of.mean, of.var, of.count = np.array(state["mean"]), np.array(state["var"]), float(state["count"])


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def rest_of(model: Any, *, replay_buffer: bool) -> dict[str, Any]:
    """Rules 2 and 3."""
    state: dict[str, Any] = {"random": _generators(model)}
    buffer = getattr(model, "replay_buffer", None)
    if buffer is not None and replay_buffer:
        state["replay_buffer"] = {
            "capacity": buffer.buffer_size,
            "pos": buffer.pos,
            "full": buffer.full,
            "columns": {
                name: _parts(column, buffer.buffer_size if buffer.full else buffer.pos)
                for name, column in _columns(buffer).items()
            },
        }
    return state


def load_rest(model: Any, state: Mapping[str, Any]) -> None:
    """Raises ValueError for the replay buffer of another model."""
    _set_generators(model, state["random"])
    buffer, saved = getattr(model, "replay_buffer", None), state.get("replay_buffer")
    if buffer is None or saved is None:
        return
    columns = _columns(buffer)
    if columns.keys() != saved["columns"].keys():
        raise ValueError("the state has a replay buffer of another kind")
    same = saved["capacity"] == buffer.buffer_size
    for name, column in columns.items():
        rows = np.concatenate(saved["columns"][name])
        if not same and saved["full"]:
            rows = np.roll(rows, -saved["pos"], axis=0)
        rows = rows[-buffer.buffer_size :]
        column[: len(rows)] = rows
        filled = len(rows)
    buffer.full = saved["full"] if same else filled == buffer.buffer_size
    buffer.pos = saved["pos"] if same else filled % buffer.buffer_size


def _columns(buffer: Any) -> dict[str, Any]:
    """Its arrays with a row for each step, by name; those of a dict as `observations.key`."""
    named = [
        (f"{name}.{key}", each) if key else (name, each)
        for name, value in vars(buffer).items()
        for key, each in (value if isinstance(value, dict) else {"": value}).items()
    ]
    rows = (buffer.buffer_size,)
    return {name: each for name, each in named if isinstance(each, np.ndarray) and each.shape[:1] == rows}


def _parts(column: Any, filled: int) -> list[Any]:
    rows = max(1, PART_BYTES * max(1, len(column)) // max(1, column.nbytes))
    return [column[at : min(at + rows, filled)] for at in range(0, filled, rows)] or [column[:0]]


def _generators(model: Any) -> dict[str, Any]:
    version, numbers, gauss = random.getstate()
    return {
        "python": [version, np.array(numbers), gauss],
        "numpy": np.random.get_state(),  # noqa: NPY002  # the one that Stable-Baselines3 draws from
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if model.device.type == "cuda" else [],
        "actions": model.action_space.np_random.bit_generator.state,
    }


def _set_generators(model: Any, state: Mapping[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    np.random.set_state(state["numpy"])  # noqa: NPY002  # as above
    torch.set_rng_state(state["torch"])
    if model.device.type == "cuda" and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    model.action_space.np_random.bit_generator.state = state["actions"]


def made_of(settings: models.Settings, observation_space: Any, action_space: Any) -> dict[str, Any]:
    """What `load_model` makes the model of."""
    described = [
        spaces.describe(observation_space, role="observation_space"),
        spaces.describe(action_space, role="action_space"),
    ]
    return {"params": settings.plain(), "spaces": msgspec.to_builtins(described, builtin_types=(bytes,))}


def load_model(path: str | Path, *, device: str = "auto") -> Any:
    """The model in an agent's state file (`agents/NAME.state` in the run's folder, or a checkpoint), as an object of
    Stable-Baselines3: `predict`, `save("model.zip")`, `evaluate_policy`. With `normalize` its `get_vec_normalize_env()` has
    the statistics.

    Raises:
        ConductorError: the file cannot be read, or is no state of `governor.episodes.sb3:Agent`.
    """
    state = state_file.load(Path(path))
    if state is None:
        raise ConductorError(f"the agent's state {path} is not there")
    if "made_of" not in state:
        raise ConductorError(f"the agent's state {path} is none of governor.episodes.sb3:Agent")
    params = dict(state["made_of"]["params"])
    known = {name: params.pop(name) for name in models.Settings.__dataclass_fields__ if name in params}
    described = msgspec.convert(state["made_of"]["spaces"], list[spaces.SpaceSpec], builtin_types=(bytes,))
    settings = models.Settings(**known, params={**params, "device": device})
    model = models.make(settings, *(spaces.build(each) for each in described), seed=0)
    load_weights(model, state)
    return model
