"""A world without an end, so that an episode has exactly as many steps as the run file says."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
from gymnasium import spaces

from governor.episodes.rules.statistics import PhaseStatistics


class Endless(gymnasium.Env):
    """Counts; never terminates."""

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(2)
        self.action_space = spaces.Discrete(2)
        self._at = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._at = 0
        return self._at, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._at ^= 1
        return self._at, float(action), False, False, {}


class EndlessWithoutCurves(Endless):
    """The process that it is in keeps no curves of metrics."""

    def __init__(self) -> None:
        super().__init__()
        PhaseStatistics._add_to_curves = staticmethod(lambda *_: None)  # noqa: SLF001  # there is no switch


class Waiting(Endless):
    """Takes its time for a step: a run that is in work and leaves the machine to others."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        time.sleep(0.05)
        return super().step(action)
