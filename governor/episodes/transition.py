"""What an agent learns from: one step of an environment, seen from the agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """`action`, taken at `observation`, brought `reward` and led to `next_observation`.

    `terminated`: the task itself has ended there, so the value of `next_observation` is 0. `truncated`: the
    episode was cut (by the environment's or the phase's limit of steps); the value goes on.
    """

    observation: Any
    action: Any
    reward: float
    next_observation: Any
    terminated: bool
    truncated: bool
