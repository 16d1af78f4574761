"""Results of runs, for tests that need only some of their fields."""

from __future__ import annotations

from typing import Any

from governor.messages import RunResult


def run_result(uid: str = "r1", **fields: Any) -> RunResult:
    """An empty result of a finished run, with `fields` changed."""
    usual = {
        "name": "n",
        "outcome": "finished",
        "reason": "",
        "submitted_at": 1.0,
        "started_at": None,
        "ended_at": 2.0,
        "phases": (),
        "folder": "/",
    }
    return RunResult(uid=uid, **{**usual, **fields})
