"""One step of an environment, as an agent learns from it."""

from __future__ import annotations

from typing import Any

import msgspec


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """`action`, taken at `observation`, led to `reward` and `next_observation`.

    Observations and actions have the form of their space, without a batch axis: int for Discrete, str for Text, dict for Dict,
    tuple for Tuple, and so on, else a numpy array of its dtype and shape. `reward` is a finite float, undiscounted. `terminated`: the task itself has ended, so the value of
    `next_observation` is 0. `truncated`: a step limit of the environment or of the phase cut the episode; the
    value of `next_observation` continues.
    """

    observation: Any
    action: Any
    reward: float
    next_observation: Any
    terminated: bool
    truncated: bool
