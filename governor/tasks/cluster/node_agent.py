"""One small actor on each other node: controls runners there as the driver does on its own machine, and reads what they print.

If it dies, a new one is started: each call contains the `Hello` of its runner, and what was not read of spools is there.
"""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from governor.output.spool_folder import SpoolFolder
from governor.tasks.protocol.ticket_pipe import RunnerControl

if TYPE_CHECKING:
    from governor.tasks.protocol.wire import Hello

LINES_PER_SECOND: Final = 2000
BYTES_PER_SECOND: Final = 1 << 20
"""Of each stream of a runner."""
LINES_AT_ONCE: Final = 20_000
LOOK_SECONDS: Final = 0.1


class NodeAgent:
    """The actor. Its methods run in threads of their own: a process that does not exit blocks no other call."""

    def __init__(self) -> None:
        self._reading = threading.Lock()
        self._spools: dict[str, SpoolFolder] = {}

    def ready(self, _: Hello | None = None) -> bool:
        """Answers once the actor runs."""
        return True

    def kill_tree(self, hello: Hello) -> list[int]:
        """As `RunnerControl.kill_tree`; if the process has exited, kills the processes with its mark."""
        with closing(RunnerControl(hello)) as control:
            return control.kill_tree()

    def take_back(self, hello: Hello, ticket: int | None = None) -> tuple[int, ...]:
        """As `RunnerControl.take_back`; cancels the attempt with this ticket, if any, afterwards."""
        with closing(RunnerControl(hello)) as control:
            taken = control.take_back()
            if ticket is not None:
                control.cancel(ticket)
            return taken

    def signal_again(self, hello: Hello) -> bool:
        """As `RunnerControl.cancel` without a ticket."""
        with closing(RunnerControl(hello)) as control:
            return control.cancel()

    def read_output(self, folder: str, seconds: float) -> bytes:
        """What runners have printed into spools of this folder since the last call: `OutputLine`s in msgpack. Waits for the first
        line so long; 0: for none, and all that is left is read and the folder removed.
        """
        until = time.monotonic() + seconds
        with self._reading:
            spools = self._spools.get(folder)
            if spools is None:
                spools = self._spools[folder] = SpoolFolder(
                    Path(folder), lines_per_second=LINES_PER_SECOND, bytes_per_second=BYTES_PER_SECOND
                )
            lines = spools.read(most=LINES_AT_ONCE, all_left=seconds <= 0)
            while not lines and (left := until - time.monotonic()) > 0:
                time.sleep(min(LOOK_SECONDS, left))
                lines = spools.read(most=LINES_AT_ONCE)
            if seconds <= 0 and len(lines) < LINES_AT_ONCE:
                del self._spools[folder]
                shutil.rmtree(folder, ignore_errors=True)
            return msgspec.msgpack.encode(lines)
