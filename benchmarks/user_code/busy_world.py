"""Environments in Python: one that takes 3 ms of CPU for a step, one that tells when it is stepped, one that is seen as a picture."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic, sleep, thread_time
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from user_code.step_world import Endless

STEP_SECONDS = 0.003


class Busy(Endless):
    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        until = thread_time() + STEP_SECONDS
        while thread_time() < until:
            pass
        return super().step(action)


class Seen(Endless):
    """Observations of 100 kB, the size of an Atari game's."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(0, 255, (210, 160, 3), np.uint8)
        self._picture = np.zeros((210, 160, 3), np.uint8)
        self._steps = 0

    def reset(self, **more: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**more)
        return self._picture.copy(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, *others = super().step(action)
        self._steps += 1
        self._picture[self._steps % 210] = self._steps % 251
        return self._picture.copy(), *others


class Told(Endless):
    """Writes when it is reset, and when it steps: a line of the file `log` with its pid and the monotonic clock."""

    def __init__(self, *, log: str) -> None:
        super().__init__()
        self._log = os.open(Path(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def _tell(self, what: str) -> None:
        os.write(self._log, f"{what} {os.getpid()} {monotonic()}\n".encode())

    def reset(self, **more: Any) -> tuple[int, dict[str, Any]]:
        self._tell("reset")
        return super().reset(**more)

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        sleep(STEP_SECONDS)
        self._tell("step")
        return super().step(action)
