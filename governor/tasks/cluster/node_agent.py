"""One small actor on each other node: controls runners there as the driver does on its own machine.

It has no state: each call contains the `Hello` of its runner. If it dies, a new one is started.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from governor.tasks.protocol.ticket_pipe import RunnerControl

if TYPE_CHECKING:
    from governor.tasks.protocol.wire import Hello


class NodeAgent:
    """The actor. Its methods run in threads of their own: a process that does not exit blocks no other call."""

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
