"""An environment in Python that takes 3 ms of CPU for a step."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic, sleep, thread_time
from typing import Any

from user_code.step_world import Endless

STEP_SECONDS = 0.003


class Busy(Endless):
    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        until = thread_time() + STEP_SECONDS
        while thread_time() < until:
            pass
        return super().step(action)


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
