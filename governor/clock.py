"""The wall clock of everything on record. Waits and deadlines are measured in monotonic seconds instead.

Where ``RUN_GOVERNOR_CLOCK`` names a file when the process starts, the number of seconds in it is added: so the fault campaign
changes the clock of one daemon, not the machine's.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "RUN_GOVERNOR_CLOCK"
_steps: Final = Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None


def wall() -> float:
    """Seconds since the epoch."""
    return time.time() if _steps is None else time.time() + float(_steps.read_text())
