"""What a runner prints: where it goes, and the run of a task that it belongs to.

Rules:
1. It goes to spools of the driver that the runner works for now (`output.capture`): in a run to those of the run, which the daemon
   reads; in a script to those that the script shows. On another machine it goes to spools there, which the driver fetches.
2. Each run of a task begins a line of its own.
3. Without a driver that wants it, it goes where Ray sends it.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from governor.output import capture, spool
from governor.output.attribution import Attribution
from governor.tasks.protocol.wire import PLAY_CHUNK
from governor.tasks.runner_process.pickled import PREFIX

if TYPE_CHECKING:
    from governor.tasks.protocol.wire import Serve, WorkItem


class RunnerOutput:
    """The output of this process."""

    def __init__(self) -> None:
        self._attribution = Attribution()
        self._names_functions = False

    def serve(self, driver: Serve, *, is_here: bool) -> str:
        """It goes to this driver from now on. Returns the folder of the spools if they are not on its machine, else ""."""
        if driver.spools is None:
            return ""
        self._attribution = Attribution()
        self._names_functions = not driver.conductor
        node: Any = ray._private.worker._global_node  # noqa: SLF001  # its only place
        folder = driver.spools if is_here else f"{node.get_session_dir_path()}/governor-{driver.marker[1:]}"
        conductor = driver.conductor or "script"
        if capture.goes_to(Path(folder), conductor=conductor):
            return "" if is_here else folder
        try:
            former = capture.capture(Path(folder), conductor=conductor)
        except OSError as error:  # a full disk
            sys.stderr.write(f"what tasks print cannot be collected: {error}\n")
            return ""
        if former is not None:
            os.close(former)
        return "" if is_here else folder

    def begin(self, work: WorkItem, run: int) -> None:
        """What is printed from now on belongs to this run of the task. Episodes say themselves what they are."""
        if work.call != PLAY_CHUNK:
            task = work.task
            if self._names_functions and task.isdecimal():
                task = _shown(work.call, task)
            self._attribution.begin_as(spool.fragment_of_task(task, run, work.attempt))

    def end_run(self) -> None:
        """The run that began last is over: what it has printed is in the spools."""
        capture.end_lines()

    def end(self) -> None:
        """What is printed from now on belongs to no task."""
        self._attribution.end()


@lru_cache(maxsize=1024)
def _shown(call: str, task: str) -> str:
    """The name of such a task in a script's terminal: a number alone says nothing."""
    kind, _, rest = call.partition(":")
    name = rest.partition("#")[0].partition(":")[0].rpartition(".")[2] if f"{kind}:" == PREFIX else rest
    return f"{name}[{task}]"
