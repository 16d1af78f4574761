"""Stable-Baselines3 (extra `sb3`): any of its algorithms as an agent, `entry: "governor.episodes.sb3:Agent"`.

Rules:
1. Policies, buffers, schedules and `train()` are those of Stable-Baselines3. Only its loop over environments
   (`collect_rollouts`) is replaced: here the environments are stepped by others, and hand over one step at a time. With
   one worker every number is drawn and computed in the order of that loop, so the weights are the same.
2. Nothing is pickled: a state has the parameters, optimizers, buffers, counters and random generators as plain data (`state`).
3. Torch and Stable-Baselines3 are imported in this package alone.
"""

from __future__ import annotations

try:
    import stable_baselines3 as _  # noqa: F401  # the message is for those who lack it
except ImportError as error:
    raise ImportError(
        f"Stable-Baselines3 does not import: pip install 'run-governor[sb3]' ({error})"
    ) from error

from governor.episodes.sb3.agent import Agent
from governor.episodes.sb3.state import load_model

__all__ = ["Agent", "load_model"]
