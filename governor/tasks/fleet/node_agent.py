"""One small actor on each other node: does there what the driver can do for runners on its own machine.

It keeps nothing: each call names the process it is about, by its pid and birth. Its death costs a new one.
"""

from __future__ import annotations

import os

from governor.tasks.exchange import claims, reaper


class NodeAgent:
    """The actor. Its methods run in threads, side by side: a process that does not die holds up nobody."""

    def ready(self) -> bool:
        """Answers once the actor is there."""
        return True

    def kill_tree(self, pid: int, created: float, mark: int) -> list[int]:
        """As `reaper.kill_tree`; of a process that is dead already, what has its mark."""
        handle = reaper.open_pid(pid, created)
        try:
            return reaper.kill_tree(pid, handle, mark)
        finally:
            if handle is not None:
                os.close(handle)

    def take_back(self, pid: int, created: float, pipe: int) -> tuple[int, ...]:
        """As `claims.take_back`."""
        handle = reaper.open_pid(pid, created)
        if handle is None:
            return ()
        try:
            ours = claims.open_claims(pid, pipe)
        except OSError:
            return ()
        finally:
            os.close(handle)
        try:
            return claims.take_back(ours)
        finally:
            os.close(ours)

    def cancel(self, pid: int, created: float, pipe: int, cancels: int, ticket: int) -> tuple[int, ...]:
        """What `take_back` gives; then as `claims.ask_to_end`."""
        taken = self.take_back(pid, created, pipe)
        handle = reaper.open_pid(pid, created)
        if handle is not None:
            try:
                claims.ask_to_end(pid, cancels, ticket, handle)
            finally:
                os.close(handle)
        return taken

    def remind(self, pid: int, created: float, cancels: int) -> bool:
        """As `claims.remind`."""
        handle = reaper.open_pid(pid, created)
        if handle is None:
            return False
        try:
            return claims.remind(pid, cancels, handle)
        finally:
            os.close(handle)
