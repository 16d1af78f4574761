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
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from governor import logs
from governor.errors import FilesRemoved
from states import Running, Starting
from states.events import FolderLost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from states import State
    from states.events import Event

CHECK_SECONDS: Final = 1.0
"""Between two checks."""

_UNKNOWN: Final = (-1, -1)

log = logs.get_logger()


class Files:
    """Remembers the identity of files at construction; of those in `later`, when they first exist."""

    def __init__(self, *paths: Path, later: Sequence[Path] = ()) -> None:
        self._seen = {path: _identity(path) for path in (*paths, *later)}
        self._late = {path for path in later if self._seen[path] is None}

    def removed(self) -> list[Path]:
        """Paths that no longer exist, or that another file has replaced."""
        now = {path: _identity(path) for path in self._seen}
        for path in [path for path in self._late if now[path] is not None]:
            self._late.remove(path)
            self._seen[path] = now[path]
        return [
            path
            for path, seen in self._seen.items()
            if path not in self._late
            and _UNKNOWN not in (seen, now[path])
            and (now[path] is None or now[path] != seen)
        ]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # a failing disk or server is reported elsewhere
        return _UNKNOWN
    return found.st_dev, found.st_ino


class WatchedSlot(Protocol):
    """The part of a run governor that the watch needs."""

    state: State

    @property
    def experiment_run_id(self) -> str | None: ...
    def now(self) -> float: ...


class _Watched(NamedTuple):
    uid: str
    folders: Files
    post: Callable[[Event], None]


class FileWatch:
    """Watches for one daemon: files of runs are below `runs`, sockets below `runtime`. `on_lost` is called once, with
    the reason to shut down.
    """

    def __init__(
        self, journal: Path, *, runs: Path, runtime: Path, on_lost: Callable[[FilesRemoved], None]
    ) -> None:
        self._runs = runs
        self._runtime = runtime
        self._on_lost = on_lost
        self._journal_files = Files(journal, later=[journal.with_name(f"{journal.name}-wal")])
        self._runtime_files = Files(runtime, Path(util.get_temp_dir()))
        self._lost: FilesRemoved | None = None
        self._watched: dict[WatchedSlot, _Watched] = {}

    def begin(self, governor: WatchedSlot, post: Callable[[Event], None]) -> None:
        """Starts to watch the folders of the governor's run, which exist. `post` receives an event when one is
        removed.
        """
        if (uid := governor.experiment_run_id) is not None:
            folders = Files(self._runs / uid, self._runtime / uid)
            self._watched[governor] = _Watched(uid, folders, post)

    async def run(self) -> None:
        """Checks until the daemon has to shut down."""
        while not self._check_daemon():
            for governor in self._watched:
                self._check_run(governor)
            await asyncio.sleep(CHECK_SECONDS)

    def missing(self, governor: WatchedSlot) -> FilesRemoved | None:
        """A removal that affects this governor's run and was not reported before: a failure now may be due to it."""
        return self._check_daemon() or self._check_run(governor)

    def _check_daemon(self) -> FilesRemoved | None:
        if self._lost is None:
            self._lost = self._lost_by_daemon()
            if self._lost is not None:
                self._on_lost(self._lost)
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

    def _check_run(self, governor: WatchedSlot) -> FilesRemoved | None:
        uid, folders, post = self._watched[governor]
        # A run that ends removes its sockets itself.
        if governor.experiment_run_id != uid or not isinstance(governor.state, Starting | Running):
            return None
        for path in folders.removed():
            log.error("run.folder_removed", run=uid, folder=str(path))
            self._watched[governor] = _Watched(uid, Files(), post)  # reported once
            post(FolderLost(run=uid, at=governor.now(), path=str(path)))
            return FilesRemoved(f"the folder {path} was removed")
        return None
