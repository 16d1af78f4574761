"""The run files of the campaign: a few seconds each, with every feature of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

EPISODES: Final = 120
TASKS: Final = 16
PATIENCE: Final = {
    "restart": {"conductors": 20},
    "deadlines": {"start": "60s", "finalize": "60s", "stop": "10s"},
}
"""High, because faults are frequent here and the number of restarts is not under test."""


def run_file(kind: str, seed: int, register: Path) -> dict[str, Any]:
    """`kind` is one of `plan.RUNS`; processes of its user code write a line into `register`."""
    phase: dict[str, Any] = {"name": "work"}
    if kind != "tasks":
        phase["simulate"] = {
            "environment": "lake",
            "agents": ["walker"],
            "episodes": EPISODES,
            "workers": 2,
            "episode_timeout": "60s",
            "transport": "in_process" if kind == "in_process" else "conductors",
        }
    if kind in ("tasks", "both"):
        phase["tasks"] = _graph(register)
    made: dict[str, Any] = {"name": f"fault-{kind}", "seed": seed, "phases": [phase], **PATIENCE}
    if kind != "tasks":
        made["conductors"] = {
            "environments": {
                "lake": {"entry": "user_code:lake", "params": {"register": str(register)}, "pool": 2}
            },
            "agents": {
                "walker": {
                    "entry": "user_code:Walker",
                    "params": {"pace": 0.003, "register": str(register)},
                }
            },
        }
    return made


def whole(kind: str) -> tuple[int, int]:
    """Number of episodes and of tasks in a finished run of this kind."""
    return (0 if kind == "tasks" else EPISODES, TASKS if kind in ("tasks", "both") else 0)


def _graph(register: Path) -> list[dict[str, Any]]:
    """Three layers: tasks that fail or crash at the first start, large values, and a task that depends on all."""
    calls = ("nap", "flaky", "nap", "crash", "nap", "large", "nap", "nap")
    tasks = [_task(f"a{place}", call, register) for place, call in enumerate(calls)]
    tasks += [
        _task(f"b{place}", "nap", register, needs=[f"a{place}", f"a{place + 1}"])
        for place in range(TASKS - 9)
    ]
    last = _task("end", "large", register, needs=[f"b{place}" for place in range(TASKS - 9)])
    return [*tasks, last]


def _task(name: str, call: str, register: Path, *, needs: list[str] | None = None) -> dict[str, Any]:
    return {
        "id": name,
        "call": f"user_code:{call}",
        "args": {"seconds": 0.15, "register": str(register)},
        "depends_on": needs or [],
        "timeout": "60s",
        "retries": 6,
    }
