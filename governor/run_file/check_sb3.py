"""Checks agents with the entry `governor.episodes.sb3:Agent`, whose algorithm is named in their params. Imports nothing of Stable-Baselines3.

Rules:
1. Names are those of 2.9; the long tests compare them with the installed packages. An algorithm without a module, or of
   sb3_contrib, must be one of them. A class of a newer release can be named by its module (`stable_baselines3.new.New`).
2. A param that no algorithm has is a fault if it is near one that is known. Whether this algorithm has it, and all else, is
   found where the agent is built (`check --build`).
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Final

from governor.run_file.plain_data import entry_of, mapping
from governor.units.sections import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from governor.units.sections import Path

ENTRY: Final = "governor.episodes.sb3:Agent"
ALGORITHMS: Final = {
    **{name: name for name in ("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3")},
    **{name: f"sb3_contrib.{name}" for name in ("CrossQ", "QRDQN", "TQC", "TRPO")},
}
"""Those that learn step by step, by their class: as they are written in params."""
WITHOUT: Final = ("ARS", "MaskablePPO", "RecurrentPPO")
"""Of sb3_contrib, with a loop over environments of their own."""
PARAMS: Final = frozenset(
    re.findall(
        r"\w+",
        """
    action_noise algorithm batch_size buffer_size cg_damping cg_max_steps clip_range clip_range_vf device ent_coef
    exploration_final_eps exploration_fraction exploration_initial_eps gae_lambda gamma gradient_steps learning_rate
    learning_starts line_search_max_iter line_search_shrinking_factor log_interval max_grad_norm model n_critic_updates n_epochs
    n_steps normalize normalize_advantage optimize_memory_usage policy policy_delay policy_kwargs replay_buffer_class
    replay_buffer_kwargs rms_prop_eps rollout_buffer_class rollout_buffer_kwargs save_replay_buffer sde_sample_freq
    stats_window_size sub_sampling_factor target_entropy target_kl target_noise_clip target_policy_noise
    target_update_interval tau tensorboard_log top_quantiles_to_drop_per_net total_timesteps train_freq use_rms_prop use_sde
    use_sde_at_warmup verbose vf_coef
    """,
    )
)
"""Of any algorithm, and of the agent itself."""
COUNTS: Final = frozenset(
    (
        "batch_size",
        "buffer_size",
        "log_interval",
        "n_epochs",
        "n_steps",
        "stats_window_size",
        "total_timesteps",
    )
)
"""Those that are whole numbers of 1 or more."""


def faults(agents: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """The faults of these sections, given as plain data."""
    for name, section in agents.items():
        params = mapping(mapping(section).get("params"))
        algorithm = params.get("algorithm")
        if entry_of(section) != ENTRY or not isinstance(algorithm, str):
            continue
        place: Path = ("conductors", "agents", name, "params")
        found = re.fullmatch(r"(?:stable_baselines3[.:]|(sb3_contrib[.:]))?(\w+)", algorithm)
        if found is None:  # of another package: its arguments are not known
            continue
        written = f"sb3_contrib.{found[2]}" if found[1] else found[2]
        if written not in ALGORITHMS.values():
            yield (*place, "algorithm"), f"unknown algorithm {algorithm!r}{_hint(found[2])}"
        for param in sorted(COUNTS.intersection(params)):
            if fault := _count_fault(params[param]):
                yield (*place, param), fault
        for param in () if params.get("model") else params:  # a saved model takes what it has as an attribute
            if param not in PARAMS and (hint := suggestion(param, PARAMS)):
                yield (*place, param), f"is no param of an algorithm{hint}"


def _count_fault(value: object) -> str:
    if value is None or (type(value) is int and value >= 1):
        return ""
    hint = f": write {int(value)}" if isinstance(value, float) and value >= 1 and value.is_integer() else ""
    return f"{value!r} is no whole number of 1 or more{hint}"


def _hint(name: str) -> str:
    if name in WITHOUT:
        return ": it has a loop over environments of its own, which cannot be replaced"
    by_letters = {known.lower(): written for known, written in ALGORITHMS.items()}
    if near := difflib.get_close_matches(name.lower(), by_letters, n=1):
        return f"; did you mean {by_letters[near[0]]!r}?"
    return f"; there is {', '.join(ALGORITHMS.values())}"
