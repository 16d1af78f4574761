"""Watches the files that must stay in place while the daemon runs: checks each second and reports a removal at once.

The kernel, SQLite and libzmq continue to use open files, so a removed name causes no error: data written to a journal
without a name is lost when the process ends, and no client finds a socket without one.

Rules:
1. Without the journal, the runtime folder or the forkserver's folder in it nothing can be guaranteed: the daemon
   shuts down in order.
2. A run whose folders are removed fails; other runs continue.
3. Before a failure is recorded the files are checked: their removal may have caused it.
4. The broker's supervisor watches the broker's sockets (`broker_supervisor`): they are bound again.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.errors import FilesRemoved
from governor.files import WatchedFiles
from states import Running, Starting
from states.events import FolderLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from governor.runs.active_run import ActiveRun

CHECK_SECONDS: Final = 1.0
"""Between two checks."""

log = logs.get_logger()


class FileWatch:
    """Watches for one daemon, whose sockets are below `runtime`. `on_lost` is called once, with the reason to shut
    down.
    """

    def __init__(self, journal: Path, *, runtime: Path, on_lost: Callable[[FilesRemoved], None]) -> None:
        self._on_lost = on_lost
        self._journal_files = WatchedFiles(journal, later=[journal.with_name(f"{journal.name}-wal")])
        self._runtime_files = WatchedFiles(runtime, Path(util.get_temp_dir()))
        self._lost: FilesRemoved | None = None
        self._runs: dict[ActiveRun, WatchedFiles] = {}

    @contextmanager
    def watched(self, run: ActiveRun) -> Iterator[None]:
        """Watches the folders of the run, which exist; the run gets an event when one is removed."""
        self._runs[run] = WatchedFiles(run.folder, run.socket_folder)
        try:
            yield
        finally:
            self._runs.pop(run, None)

    async def run(self) -> None:
        """Checks until the daemon has to shut down."""
        while not self._check_daemon():
            for run in list(self._runs):
                self._check_run(run)
            await asyncio.sleep(CHECK_SECONDS)

    def missing(self, run: ActiveRun) -> FilesRemoved | None:
        """A removal that affects this run and was not reported before: a failure now may be due to it."""
        return self._check_daemon() or self._check_run(run)

    def _check_daemon(self) -> FilesRemoved | None:
        if self._lost is None and (lost := self._lost_by_daemon()) is not None:
            self._lost = lost
            self._on_lost(lost)
        return self._lost

    def _lost_by_daemon(self) -> FilesRemoved | None:
        if removed := self._journal_files.removed():
            return FilesRemoved(
                f"the journal {removed[0]} was removed or replaced while in use: what was recorded since is lost to the "
                "next start; put the file or a copy of it back, then start the daemon again"
            )
        if removed := self._runtime_files.removed():
            return FilesRemoved(
                f"{removed[0]} was removed while in use, and the sockets with it; runs in work are interrupted, and continue "
                "at the next start. A user's runtime folder is removed with the last session (`loginctl enable-linger` keeps "
                "it); --runtime-dir chooses another one"
            )
        return None

    def _check_run(self, run: ActiveRun) -> FilesRemoved | None:
        # A run that ends removes its sockets itself.
        if run not in self._runs or not isinstance(run.state, Starting | Running):
            return None
        for path in self._runs[run].removed():
            log.error("run.folder_removed", run=run.uid, folder=str(path))
            del self._runs[run]  # reported once
            run.post(FolderLost(*run.stamp, path=str(path)))
            return FilesRemoved(f"the folder {path} was removed")
        return None
