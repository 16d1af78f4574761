"""Pipes of a runner, used from outside: to take back attempts that it has not begun, and to cancel the current one.

A runner keeps the tickets of its bundle in a pipe and claims them one by one. A read of eight bytes from a pipe gives
them to one reader only, so a ticket is either claimed or taken back; and this works while user code holds the GIL.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from governor.processes import kill_tree

if TYPE_CHECKING:
    from governor.tasks.protocol.wire import Hello

TICKET: Final = struct.Struct("<Q")
CANCEL_SIGNAL: Final = signal.SIGUSR1
MOST: Final = 8192
"""Tickets that fit into a pipe of the usual 64 KiB."""


class RunnerControl:
    """Controls a runner of this machine. If it has exited before, `pidfd` or `tickets` is None, and what is asked of it has
    no effect.
    """

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        self.pidfd = hello.identity.open()
        self.tickets: int | None = None
        if self.pidfd is not None:
            with suppress(OSError):
                self.tickets = self._open(hello.ticket_pipe, os.O_RDONLY)

    def take_back(self) -> tuple[int, ...]:
        """Takes the unclaimed tickets out of the pipe; the runner will not claim them."""
        if self.tickets is None:
            return ()
        try:
            data = os.read(self.tickets, MOST * TICKET.size)
        except OSError:  # empty, or the runner has exited
            return ()
        return tuple(ticket for (ticket,) in TICKET.iter_unpack(data))

    def cancel(self, ticket: int | None = None) -> bool:
        """Raises TaskCancelled in the attempt with this ticket, if the runner is executing it.

        Without a ticket: signals again if the runner has not read its cancel pipe; returns whether that was so. A signal
        that arrives between Python's last check for signals and a blocking system call does not interrupt that call.
        """
        if self.pidfd is None:
            return False
        try:
            pipe = self._open(self._hello.cancel_pipe, os.O_WRONLY)
        except OSError:
            return False
        try:
            if ticket is not None:
                os.write(pipe, TICKET.pack(ticket))
            elif not any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))):
                return False
            signal.pidfd_send_signal(self.pidfd, CANCEL_SIGNAL)
        except OSError:  # full: thousands of requests are unread; or the runner has exited
            return False
        finally:
            os.close(pipe)
        return True

    def kill_tree(self) -> list[int]:
        """Blocks until the process and all that it has left behind have exited; returns the pids that survive."""
        return kill_tree.kill_tree(self._hello.pid, self.pidfd, self._hello.mark)

    def close(self) -> None:
        """Idempotent."""
        for descriptor in (self.pidfd, self.tickets):
            if descriptor is not None:
                os.close(descriptor)
        self.pidfd = self.tickets = None

    def _open(self, number: int, mode: int) -> int:
        """Opens one of its pipes. Raises OSError if it has exited."""
        return os.open(f"/proc/{self._hello.pid}/fd/{number}", mode | os.O_NONBLOCK | os.O_CLOEXEC)
