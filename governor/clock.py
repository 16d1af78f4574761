"""The wall clock of everything on record. Waits and deadlines are measured in monotonic seconds and know nothing of it.

Where ``RUN_GOVERNOR_CLOCK`` names a file when the process starts, the number in it, seconds, is added: so the fault campaign
steps the clock of one daemon, and never the machine's.
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
