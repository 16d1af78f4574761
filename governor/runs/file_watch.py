"""Files that must stay where they are while the daemon works: it looks each second, and what is gone is said at once.

The kernel, SQLite and libzmq go on with what they have open, so nothing fails when a name is removed: what is written to a
journal without a name is lost with the process, and nobody finds a socket without one.

Rules:
1. Without journal, runtime folder or the forkserver's folder in it no promise can be kept: the daemon goes down in order.
2. Without its folders a run has failed; the others go on.
3. Who has something to report that ended badly looks at once: it may have failed for that, and is no end of its own.
4. Sockets of the broker are its own keeper's business (`broker_process`): they are bound again.
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

SECONDS: Final = 1.0
"""Between two looks."""

_UNKNOWN: Final = (-1, -1)

log = logs.get_logger()


class Files:
    """Files as they are when this is made; those of `later` as they are when they are first seen."""

    def __init__(self, *paths: Path, later: Sequence[Path] = ()) -> None:
        self._seen = {path: _identity(path) for path in (*paths, *later)}
        self._late = {path for path in later if self._seen[path] is None}

    def removed(self) -> list[Path]:
        """Those that are not there, or that another file has replaced."""
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
    except OSError:  # a disk or a server that fails: others say so
        return _UNKNOWN
    return found.st_dev, found.st_ino


class WatchedSlot(Protocol):
    """What is needed of whoever has a run in work."""

    state: State

    @property
    def experiment_run_id(self) -> str | None: ...
    def now(self) -> float: ...


class _Watched(NamedTuple):
    uid: str
    folders: Files
    post: Callable[[Event], None]


class FileWatch:
    """Of one daemon, whose runs have their files below `runs`, their sockets below `runtime`. `on_lost` hears once why it has
    to go down.
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
        """The folders of its run are there: from now on they have to stay. `post` is told where they don't."""
        if (uid := governor.experiment_run_id) is not None:
            folders = Files(self._runs / uid, self._runtime / uid)
            self._watched[governor] = _Watched(uid, folders, post)

    async def run(self) -> None:
        """Looks until the daemon has to go down."""
        while not self._look_after_daemon():
            for governor in self._watched:
                self._look_after_run(governor)
            await asyncio.sleep(SECONDS)

    def missing(self, governor: WatchedSlot) -> FilesRemoved | None:
        """Of what this governor's run needs, what has been removed and was not told before: what fails now fails for that."""
        return self._look_after_daemon() or self._look_after_run(governor)

    def _look_after_daemon(self) -> FilesRemoved | None:
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
                f"{removed[0]} was removed while in use, and the sockets with it; runs in work are interrupted, and go on "
                "at the next start. A user's runtime folder goes with the last session (`loginctl enable-linger` keeps "
                "it); --runtime-dir chooses another one"
            )
        return None

    def _look_after_run(self, governor: WatchedSlot) -> FilesRemoved | None:
        uid, folders, post = self._watched[governor]
        # A run that ends removes its sockets itself.
        if governor.experiment_run_id != uid or not isinstance(governor.state, Starting | Running):
            return None
        for path in folders.removed():
            log.error("run.folder_removed", run=uid, folder=str(path))
            self._watched[governor] = _Watched(uid, Files(), post)  # it is told once
            post(FolderLost(run=uid, at=governor.now(), path=str(path)))
            return FilesRemoved(f"the folder {path} was removed")
        return None
