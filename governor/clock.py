"""The wall clock of everything on record. Waits and deadlines are measured in monotonic seconds instead; `result_of` is such a wait.

Where ``RUN_GOVERNOR_CLOCK`` names a file when the process starts, the number of seconds in it is added: so the fault campaign
changes the clock of one daemon, not the machine's.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
SIGNAL_CHECK_SECONDS: Final = 0.2
VARIABLE: Final = "RUN_GOVERNOR_CLOCK"
_steps: Final = Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None


def wall() -> float:
    """Seconds since the epoch."""
    return time.time() if _steps is None else time.time() + float(_steps.read_text())


def result_of(future: Future[T]) -> T:
    """Blocks the thread of a caller who may press Ctrl-C: a signal that comes just before the thread waits does not wake it, so it waits for
    `SIGNAL_CHECK_SECONDS` at once.
    """
    while not wait([future], SIGNAL_CHECK_SECONDS).done:
        pass
    return future.result()
