"""Task graphs on Ray. What user code imports from here is light: Ray is loaded by the task conductor alone."""

from __future__ import annotations

from governor.tasks.api import TaskContext, TaskResult

__all__ = ["TaskContext", "TaskResult"]
