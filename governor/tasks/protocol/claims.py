"""Pipes of a runner, used from outside: what it has not begun is taken back, what it does is asked to end.

A runner keeps the tickets of its bundle in a pipe and claims them one by one. A read of eight bytes from a pipe gives
them to one reader only, so whoever reads a ticket has it for sure; and it works while the runner holds its GIL.
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


def open_claims(pid: int, number: int) -> int:
    """The runner's pipe of tickets, as a descriptor of ours. Raises OSError when it is dead."""
    return os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def take_back(claims: int) -> tuple[int, ...]:
    """The tickets that the runner has not claimed; it never will."""
    try:
        data = os.read(claims, MOST * TICKET.size)
    except OSError:  # empty, or nobody is left
        return ()
    return tuple(ticket for (ticket,) in TICKET.iter_unpack(data))


def ask_to_end(pid: int, cancels: int, ticket: int, handle: int) -> None:
    """Raises TaskCancelled in the attempt with this ticket, if the runner of this pidfd is at it. A dead one: nothing."""
    _tell(pid, cancels, handle, TICKET.pack(ticket))


def remind(pid: int, cancels: int, handle: int) -> bool:
    """Signals again while the runner has not read what it was asked, and whether that was so.

    A signal that comes between Python's last look for one and the system call that blocks interrupts nothing, and the
    call lasts as long as it would have.
    """
    return _tell(pid, cancels, handle, b"")


def _tell(pid: int, cancels: int, handle: int, data: bytes) -> bool:
    """Whether there was something to read, and a runner to signal."""
    try:
        pipe = os.open(f"/proc/{pid}/fd/{cancels}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if data:
            os.write(pipe, data)
        elif not any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))):
            return False
        signal.pidfd_send_signal(handle, CANCEL_SIGNAL)
    except OSError:  # full: it has not heard thousands before; or it is dead
        return False
    finally:
        os.close(pipe)
    return True
