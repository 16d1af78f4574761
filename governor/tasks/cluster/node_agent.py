"""One small actor on each other node: controls runners there as the driver does on its own machine.

It has no state: each call contains the identity of its process. If it dies, a new one is started.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from governor.processes import kill_tree
from governor.tasks.protocol import ticket_pipe

if TYPE_CHECKING:
    from governor.processes.identity import ProcessIdentity


class NodeAgent:
    """The actor. Its methods run in threads of their own: a process that does not exit blocks no other call."""

    def ready(self) -> bool:
        """Answers once the actor runs."""
        return True

    def kill_tree(self, identity: ProcessIdentity, mark: int) -> list[int]:
        """As `kill_tree.kill_tree`; if the process has exited, kills the processes with its mark."""
        pidfd = identity.open()
        try:
            return kill_tree.kill_tree(identity.pid, pidfd, mark)
        finally:
            if pidfd is not None:
                os.close(pidfd)

    def take_back(self, identity: ProcessIdentity, pipe: int) -> tuple[int, ...]:
        """As `ticket_pipe.take_back`."""
        pidfd = identity.open()
        if pidfd is None:
            return ()
        try:
            ours = ticket_pipe.open_pipe(identity.pid, pipe)
        except OSError:
            return ()
        finally:
            os.close(pidfd)
        try:
            return ticket_pipe.take_back(ours)
        finally:
            os.close(ours)

    def cancel(self, identity: ProcessIdentity, pipe: int, cancel_pipe: int, ticket: int) -> tuple[int, ...]:
        """As `take_back`, whose tickets it returns, then as `ticket_pipe.request_cancel`."""
        taken = self.take_back(identity, pipe)
        pidfd = identity.open()
        if pidfd is not None:
            try:
                ticket_pipe.request_cancel(identity.pid, cancel_pipe, ticket, pidfd)
            finally:
                os.close(pidfd)
        return taken

    def signal_again(self, identity: ProcessIdentity, cancel_pipe: int) -> bool:
        """As `ticket_pipe.signal_again`."""
        pidfd = identity.open()
        if pidfd is None:
            return False
        try:
            return ticket_pipe.signal_again(identity.pid, cancel_pipe, pidfd)
        finally:
            os.close(pidfd)
