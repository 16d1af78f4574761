"""What user code of a task gets and gives back. Imports nothing but the standard library: user code imports it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """Handed to a callable that takes an argument named `context`.

    `run` is the uid of the experiment run; `run_id` counts the runs of a repeated task from 0, `attempt` from 1.
    `deadline` is the moment (seconds since the epoch) at which this attempt is killed, None without a limit.
    Files of the run are in `run_folder`. What is written to `log` stands in the log of the run.
    """

    run: str
    task: str
    run_id: int
    attempt: int
    deadline: float | None
    run_folder: Path
    log: logging.Logger


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task may return to name its metrics, or bytes that travel as they are.

    `value` is what dependants get as input, `metrics` are numbers by name, `payload` is kept in a file of its own
    beside the value's (``results/<phase>/<task>-<run>.payload``).
    """

    value: Any = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    payload: bytes = b""
