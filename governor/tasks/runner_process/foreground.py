"""Runs of tasks in the caller's process, without Ray, for a person who looks at them: prints, breakpoints and tracebacks of user
code are as in a script.

Rules:
1. The callable is found and called as in a runner, with new copies of its arguments. Results reach dependants in the form that they
   have in a run: stored, and read back.
2. What user code raises leaves `run` as it is.
3. Nothing has a deadline: `context.deadline` is when the run would cancel the task.
"""

from __future__ import annotations

import copy
import logging
import time
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, Final

from governor.tasks.api import TaskContext
from governor.tasks.protocol import values
from governor.tasks.runner_process import calls
from governor.tasks.work import file_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from governor.messages import StartTasks, TaskSpec

RUN: Final = "try"
"""`context.run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What a run of a task has returned: its value, as dependants get it; `payload` in bytes."""

    value: Any
    metrics: dict[str, float]
    payload: int
    seconds: float


class ForegroundTasks:
    """The tasks of one phase. `models` are the run's; `run_folder` is that of `context`; values are stored in `scratch`."""

    def __init__(
        self, command: StartTasks, *, models: Sequence[Any], run_folder: Path, scratch: Path
    ) -> None:
        self._specs = {spec.id: spec for spec in command.tasks}
        self._batch = command.phase
        self._model = models[0] if models else None
        self._run_folder = run_folder
        self._scratch = scratch
        self._values: dict[str, list[Any]] = {}
        self._log = _log()

    def in_order(self, task: str) -> list[TaskSpec]:
        """All that `task` depends on, each behind its own dependencies; `task` is the last one."""
        needs: dict[str, tuple[str, ...]] = {}
        todo = [task]
        while todo:
            name = todo.pop()
            if name not in needs:
                needs[name] = self._specs[name].depends_on
                todo += needs[name]
        return [self._specs[name] for name in TopologicalSorter(needs).static_order()]

    def run(self, task: TaskSpec, run: int) -> Returned:
        """Calls run number `run` of the task; those that it depends on must have run, each as often as it repeats.

        Raises what user code raises, ImportError and AttributeError for a callable that is not there, `values.Unserialisable`.
        """
        target = calls.find(task.call)
        began, at = time.monotonic(), time.time()
        offers = {"inputs": lambda: self._inputs(task), "context": lambda: self._context(task, run, at)}
        returned = calls.call_it(target, args=copy.deepcopy(task.args), offers=offers)
        seconds = time.monotonic() - began
        stem = f"{file_name(task.id)}-{run}"
        stored = values.store(returned, folder=self._scratch, stem=stem, payload_inline=True)
        self._values.setdefault(task.id, []).append(stored)
        return Returned(
            value=self._load(stored), metrics=stored.metrics, payload=len(stored.payload), seconds=seconds
        )

    def _load(self, stored: Any) -> Any:
        if stored.value_file is None:
            return copy.deepcopy(stored.value)
        return values.load(self._scratch / stored.value_file)

    def _inputs(self, task: TaskSpec) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in task.depends_on:
            loaded = [self._load(stored) for stored in self._values[name]]
            found[name] = loaded if self._specs[name].repeat > 1 else loaded[0]
        return found

    def _context(self, task: TaskSpec, run: int, at: float) -> TaskContext:
        return TaskContext(
            run=RUN,
            batch=self._batch,
            task=task.id,
            run_id=run,
            attempt=1,
            deadline=None if task.timeout is None else at + task.timeout,
            run_folder=self._run_folder,
            log=self._log,
            model=self._model,
            is_eval=task.is_eval,
        )


def _log() -> logging.Logger:
    """The log of tasks, with all of its levels, on standard error."""
    log = logging.getLogger("task")
    log.setLevel(logging.DEBUG)
    log.propagate = False
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    log.handlers = [handler]
    return log
