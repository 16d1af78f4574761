"""The daemon's heartbeat in its state folder: a file that exists while the daemon runs, and remains after a crash.

The next invocation reads how and when the last one ended. Rules:
* No wall clock: times are of the monotonic clock, as in the events of the runs; the boot id tells which boot.
* The file of an earlier daemon stays until `beating`: a start that fails before it has recorded the crash loses
  nothing.
* A beat that cannot be written is skipped: the journal reports a failing disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from governor.errors import TryAgain
from governor.processes.identity import ProcessIdentity, boot_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

NAME: Final = "governor.beat"
SECONDS: Final = 1.0
"""Between two beats."""
LENGTH: Final = 256


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """The last heartbeat of a daemon: its identity, and the time in monotonic seconds."""

    daemon: ProcessIdentity
    at: float

    @property
    def exit_reason(self) -> str:
        """How the daemon ended, given that its file remained: not in order."""
        if self.daemon.boot != boot_id():
            return "the machine went down with the daemon"
        return f"the daemon died (pid {self.daemon.pid}): it was killed, or crashed"


class DaemonHeartbeat:
    """`last` is the beat of a daemon that crashed; None after an orderly end."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        try:
            self.last: Beat | None = msgspec.json.decode(self._path.read_bytes(), type=Beat)
        except (OSError, msgspec.MsgspecError):
            self.last = None

    @asynccontextmanager
    async def beating(self, *, in_order: Callable[[], bool]) -> AsyncIterator[None]:
        """Inside the context the file is this daemon's. `in_order` is called at the end: if False the file stays, as
        after a crash.

        Raises TryAgain when the file can't be written.
        """
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise TryAgain(f"{self._path} can't be written: {error.strerror}") from error
        beats = asyncio.create_task(_beat(fd), name="heartbeat")
        try:
            yield
        finally:
            beats.cancel()
            await asyncio.wait({beats})
            os.close(fd)
            if in_order():
                self._path.unlink(missing_ok=True)


async def _beat(fd: int) -> None:
    me = ProcessIdentity.of(os.getpid())
    while True:
        # In place, in one call and of fixed length: the file is complete whenever the daemon dies, and needs no new disk space.
        data = msgspec.json.encode(Beat(daemon=me, at=round(time.monotonic(), 3))).ljust(LENGTH)
        with contextlib.suppress(OSError):
            os.pwrite(fd, data, 0)
        await asyncio.sleep(SECONDS)
