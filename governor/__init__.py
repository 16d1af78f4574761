"""Run Governor: an asyncio daemon that brings an experiment run to exactly one end.

Public names are loaded on first use: `import governor` stays cheap, for the guard and for every child process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.version import __version__

if TYPE_CHECKING:
    from governor.daemon.standalone import RunGovernor
    from governor.executor import Executor
    from governor.group_results import GroupResult
    from governor.messages import ReadOutput
    from governor.result import Result
    from governor.run_file.load import Run
    from governor.script import run, submit, submit_group, wait, wait_group

__all__ = [
    "Executor",
    "GroupResult",
    "ReadOutput",
    "Result",
    "Run",
    "RunGovernor",
    "__version__",
    "run",
    "submit",
    "submit_group",
    "wait",
    "wait_group",
]

_HOME = {
    "Executor": "governor.executor",
    "GroupResult": "governor.group_results",
    "ReadOutput": "governor.messages",
    "Result": "governor.result",
    "Run": "governor.run_file.load",
    "RunGovernor": "governor.daemon.standalone",
    "run": "governor.script",
    "submit": "governor.script",
    "submit_group": "governor.script",
    "wait": "governor.script",
    "wait_group": "governor.script",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'governor' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
