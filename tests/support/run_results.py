"""Results of runs for those whom only some of their fields concern."""

from __future__ import annotations

from typing import Any

from governor.messages import RunResult


def run_result(uid: str = "r1", **fields: Any) -> RunResult:
    """One that finished, with nothing in it, but for `fields`."""
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
