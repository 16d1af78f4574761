"""The daemon's heartbeat in its state folder: a file that is there while it lives, and stays where it dies.

The next invocation learns from it how the last one ended, and when. Rules:
* No wall clock: the time is that of the monotonic clock, as in the events of the runs; the boot tells which one's.
* What an earlier daemon left stays until `beating`: a start that fails before it has recorded the deaths loses nothing.
* A beat that cannot be written is left out: the journal is the one to complain of a disk.
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
    """The last sign of life of a daemon: who, and when in monotonic seconds."""

    daemon: ProcessIdentity
    at: float

    @property
    def obituary(self) -> str:
        """What became of it: it left this behind, so it did not end in order."""
        if self.daemon.boot != boot_id():
            return "the machine went down with the daemon"
        return f"the daemon died (pid {self.daemon.pid}): it was killed, or crashed"


class DaemonHeartbeat:
    """`last` is what a daemon that died has left here; None after an end in order."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        try:
            self.last: Beat | None = msgspec.json.decode(self._path.read_bytes(), type=Beat)
        except (OSError, msgspec.MsgspecError):
            self.last = None

    @asynccontextmanager
    async def beating(self, *, in_order: Callable[[], bool]) -> AsyncIterator[None]:
        """Inside, the file is this daemon's. `in_order` is asked at the end: else it stays, as after a death.

        Raises TryAgain when there is no room for it.
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
        # In place, in one call and of one length: it is whole whenever the daemon dies, and takes no room on the disk.
        data = msgspec.json.encode(Beat(daemon=me, at=round(time.monotonic(), 3))).ljust(LENGTH)
        with contextlib.suppress(OSError):
            os.pwrite(fd, data, 0)
        await asyncio.sleep(SECONDS)
