"""Tasks that do nothing, so that the benchmark measures the way to Ray and back."""

from __future__ import annotations

import time


def nothing() -> dict[str, float]:
    return {"done": 1.0}


def wait(seconds: float) -> None:
    time.sleep(seconds)
