"""Notifications to the service manager: sd_notify(3) datagrams and the watchdog, without libsystemd.

Rules:
* The variables are removed from the environment: a child that inherited them could report in the daemon's name.
* A datagram that cannot be sent is not an error: every call returns whether it was sent.
* Without NOTIFY_SOCKET every call does nothing and returns False.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from governor.errors import GovernorError

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

EXTEND_SECONDS: Final = 30.0
"""Seconds by which one message extends the start timeout of the service manager."""
STOP_SECONDS: Final = 25.0
"""That a stop may take beyond `stop_grace`: processes are killed, and the journal is closed."""
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class SystemdNotifier:
    """Sends notifications. `watchdog_interval` is how often `watchdog()` is due, in seconds."""

    def __init__(self, *, address: str | None, watchdog_interval: float | None = None) -> None:
        self.address = address
        self.watchdog_interval = watchdog_interval if address else None

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str] = os.environ) -> SystemdNotifier:
        """Removes NOTIFY_SOCKET, WATCHDOG_* and LISTEN_* from `environ`; call it before any child starts."""
        taken = {name: environ.pop(name, None) for name in _VARIABLES}
        interval = _interval(taken["WATCHDOG_USEC"], taken["WATCHDOG_PID"])
        return cls(address=taken["NOTIFY_SOCKET"] or None, watchdog_interval=interval)

    def ready(self, status: str | None = None) -> bool:
        """The daemon can accept runs; also ends a reload."""
        return self._send("READY=1", *_status(status))

    def status(self, text: str) -> bool:
        return self._send(*_status(text))

    def reloading(self) -> bool:
        """A reload has begun; `ready()` ends it."""
        return self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def extend(self, seconds: float) -> bool:
        """Extends the start timeout to so many seconds from now."""
        return self._send(_extension(seconds))

    async def keep_extending(self) -> None:
        """Extends the start timeout until cancelled: a start then times out only if the event loop hangs. Each part
        of it has a deadline of its own, except for slow disks.
        """
        while True:
            await asyncio.sleep(EXTEND_SECONDS / 3)
            self.extend(EXTEND_SECONDS)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """An error that prevents the start becomes the status. `systemctl status` shows that even where journald has read the last line of the
        log too late to know its unit.
        """
        try:
            yield
        except GovernorError as error:
            self.status(str(error))
            raise

    def stopping(self, status: str, *, grace: float) -> bool:
        """Runs have so many seconds to stop in order; TimeoutStopSec of the unit, where it is shorter, is extended to that."""
        return self._send("STOPPING=1", *_status(status), _extension(grace + STOP_SECONDS))

    async def keep_watched(self) -> None:
        """Feeds the watchdog until cancelled; returns at once where there is none."""
        while self.watchdog_interval is not None:
            self.watchdog()
            await asyncio.sleep(self.watchdog_interval)

    def watchdog(self) -> bool:
        """Feeds the watchdog: send it from the event loop itself, so that a blocked loop is detected."""
        return self._send("WATCHDOG=1")

    def _send(self, *assignments: str) -> bool:
        if self.address is None:
            return False
        # A leading "@" stands for the NUL byte of the abstract namespace.
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(assignments).encode(), address)
        except OSError:
            return False
        return True


def _status(text: str | None) -> tuple[str, ...]:
    # A line break would begin a new assignment.
    return () if text is None else ("STATUS=" + " ".join(text.split()),)


def _extension(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"


def _interval(usec: str | None, pid: str | None) -> float | None:
    """Half of the manager's timeout, as sd_watchdog_enabled(3) recommends; None if the variables are for another
    process.
    """
    if not usec or not usec.isascii() or not usec.isdigit() or int(usec) == 0:
        return None
    if pid and pid != str(os.getpid()):
        return None
    return int(usec) / 1e6 / 2
