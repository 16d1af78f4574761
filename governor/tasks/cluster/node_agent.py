"""One small actor on each other node: does there what the driver can do for runners on its own machine.

It keeps nothing: each call names the process it is about, by its birth. Its death costs a new one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from governor.processes import kill_tree
from governor.tasks.protocol import claims

if TYPE_CHECKING:
    from governor.processes.identity import ProcessIdentity


class NodeAgent:
    """The actor. Its methods run in threads, side by side: a process that does not die holds up nobody."""

    def ready(self) -> bool:
        """Answers once the actor is there."""
        return True

    def kill_tree(self, birth: ProcessIdentity, mark: int) -> list[int]:
        """As `kill_tree.kill_tree`; of a process that is dead already, what has its mark."""
        handle = birth.open()
        try:
            return kill_tree.kill_tree(birth.pid, handle, mark)
        finally:
            if handle is not None:
                os.close(handle)

    def take_back(self, birth: ProcessIdentity, pipe: int) -> tuple[int, ...]:
        """As `claims.take_back`."""
        handle = birth.open()
        if handle is None:
            return ()
        try:
            ours = claims.open_claims(birth.pid, pipe)
        except OSError:
            return ()
        finally:
            os.close(handle)
        try:
            return claims.take_back(ours)
        finally:
            os.close(ours)

    def cancel(self, birth: ProcessIdentity, pipe: int, cancels: int, ticket: int) -> tuple[int, ...]:
        """What `take_back` gives; then as `claims.ask_to_end`."""
        taken = self.take_back(birth, pipe)
        handle = birth.open()
        if handle is not None:
            try:
                claims.ask_to_end(birth.pid, cancels, ticket, handle)
            finally:
                os.close(handle)
        return taken

    def remind(self, birth: ProcessIdentity, cancels: int) -> bool:
        """As `claims.remind`."""
        handle = birth.open()
        if handle is None:
            return False
        try:
            return claims.remind(birth.pid, cancels, handle)
        finally:
            os.close(handle)
