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
from typing import Final

TICKET: Final = struct.Struct("<Q")
CANCEL_SIGNAL: Final = signal.SIGUSR1
MOST: Final = 8192
"""Tickets that fit into a pipe of the usual 64 KiB."""


def open_pipe(pid: int, number: int) -> int:
    """Opens the runner's ticket pipe. Raises OSError if the runner has exited."""
    return os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def take_back(pipe: int) -> tuple[int, ...]:
    """Takes the unclaimed tickets out of the pipe; the runner will not claim them."""
    try:
        data = os.read(pipe, MOST * TICKET.size)
    except OSError:  # empty, or the runner has exited
        return ()
    return tuple(ticket for (ticket,) in TICKET.iter_unpack(data))


def request_cancel(pid: int, cancel_pipe: int, ticket: int, pidfd: int) -> None:
    """Raises TaskCancelled in the attempt with this ticket, if the runner is executing it. No effect after its exit."""
    _write_and_signal(pid, cancel_pipe, pidfd, TICKET.pack(ticket))


def signal_again(pid: int, cancel_pipe: int, pidfd: int) -> bool:
    """Signals again if the runner has not read its cancel pipe; returns whether that was so.

    A signal that arrives between Python's last check for signals and a blocking system call does not interrupt that call.
    """
    return _write_and_signal(pid, cancel_pipe, pidfd, b"")


def _write_and_signal(pid: int, cancel_pipe: int, pidfd: int, data: bytes) -> bool:
    """Whether the cancel pipe holds data and the runner was signalled."""
    try:
        pipe = os.open(f"/proc/{pid}/fd/{cancel_pipe}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if data:
            os.write(pipe, data)
        elif not any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))):
            return False
        signal.pidfd_send_signal(pidfd, CANCEL_SIGNAL)
    except OSError:  # full: thousands of requests are unread; or the runner has exited
        return False
    finally:
        os.close(pipe)
    return True
