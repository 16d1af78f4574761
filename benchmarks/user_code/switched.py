"""Poles in a process whose output can be captured or not, from one phase to the next."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv

from governor.output import capture


def switch(spools: str, *, captured: bool) -> None:
    """Both ways cost the same."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for on in (not captured, captured):
        if on:
            capture.capture(Path(spools), conductor="simulation")
        else:
            capture.release(nowhere)
    os.close(nowhere)


class Falling(CartPoleEnv):
    def __init__(self, *, spools: str, captured: bool) -> None:
        super().__init__()
        switch(spools, captured=captured)


class Informed(Falling):
    """Tells three numbers in the info of each step, and does not fall."""

    def __init__(self, **switched: Any) -> None:
        super().__init__(**switched)
        self.theta_threshold_radians = self.x_threshold = float("inf")

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {
            "upright": bool(abs(self.state[2]) < 0.2),
            "distance": float(self.state[0]),
            "pushes": int(action),
        }
        return observation, reward, terminated, truncated, info
