"""The daemon's background tasks, and the error that ends the daemon.

A background task ends by cancellation. Any other end is that of the daemon: a crash, or, where a disk is full, files were
removed or a process can't be kept alive, an orderly end with that reason.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from governor import logs
from governor.errors import FilesRemoved, GovernorError, ProcessError
from governor.journal import disk_reserve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from pathlib import Path

log = logs.get_logger()


class Background:
    """`stop` is set when the daemon must end; `crash` is the error that ends it, if one does."""

    def __init__(self, *, state_dir: Path) -> None:
        self.stop = asyncio.Event()
        self.crash: BaseException | None = None
        self._state_dir = state_dir
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        """Runs `work` until `cancel_all`."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._ended)

    async def cancel_all(self) -> None:
        for task in list(self._tasks):
            await _cancel(task)

    @asynccontextmanager
    async def running(
        self, work: Coroutine[None, None, None], name: str
    ) -> AsyncIterator[asyncio.Task[None]]:
        """`work` runs inside the context."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        try:
            yield task
        finally:
            await _cancel(task)

    def fail(self, error: GovernorError) -> None:
        """Without a journal nothing may be acknowledged, without a broker no message arrives: the runs are
        interrupted and continue in the next invocation.
        """
        if self.crash is None:
            log.error("daemon.fatal", reason=str(error))
        self.crashed(error)

    def crashed(self, error: BaseException) -> None:
        """Ends the daemon with this error; a full disk is not a crash."""
        full = disk_reserve.no_room(self._state_dir, error) if isinstance(error, OSError) else None
        self.crash = self.crash or full or error
        self.stop.set()

    @property
    def is_in_order(self) -> bool:
        """Whether the end counts as orderly for the runs in work: a crash does not, a disk that accepts no record
        does.
        """
        return self.crash is None or isinstance(self.crash, GovernorError)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(
            error, ProcessError | FilesRemoved
        ):  # a process that could not be kept alive, with its exits
            self.fail(error)
            return
        log.error("daemon.crashed", task=task.get_name(), exc_info=error)
        self.crashed(error)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
