"""What an agent learns from: one step of an environment, seen from the agent."""

from __future__ import annotations

from typing import Any

import msgspec


class Transition(msgspec.Struct, frozen=True, kw_only=True):
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
