"""The daemon's folders, and its forkserver in one of them: taken first, so that the forkserver imports beside the daemon.

The runtime folder belongs to one daemon: what lies in it is of this invocation, or of one that was killed. So nothing is put
there before its lock is held: another one that starts at the same time clears it.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING

from governor import disk, reaping
from governor.conductors import process
from governor.errors import ConfigError, NotPermitted
from governor.state_lock import StateLock, runtime_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.config import Config


@contextmanager
def taken(config: Config) -> Iterator[None]:
    """Makes both folders and locks them, marks what is started from now on as this house's, and begins to warm the forkserver
    up. Raises NotPermitted, ConfigError, NoRoom, AlreadyServed: nothing was started then, and nothing lies in the folders.
    """
    for folder in (config.state_dir, config.runtime_dir):
        own(folder)
    with StateLock(config.state_dir), runtime_lock(config.runtime_dir):
        reaping.mark(config.state_dir)
        try:
            _warm_up(config.runtime_dir)
            yield
        finally:
            process.shut_down()
            reaping.unmark(config.state_dir)


def _warm_up(runtime_dir: Path) -> None:
    try:
        process.warm_up(folder=runtime_dir)
    except OSError as error:
        raise disk.no_room(runtime_dir, error) or error from None


def own(folder: Path) -> None:
    """Makes the folder 0700 where it is not there. Raises NotPermitted, ConfigError, NoRoom."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except PermissionError as error:
        raise NotPermitted(
            f"{folder} can't be made: {error.strerror}; choose another with --state-dir, --runtime-dir"
        ) from error
    except OSError as error:
        raise disk.no_room(folder, error) or ConfigError(
            str(folder), [f"can't be made a folder: {error.strerror}"]
        ) from error


def clear(runtime_dir: Path) -> None:
    """Removes everything but the forkserver's own folder, which multiprocessing removes when this process ends."""
    kept = Path(util.get_temp_dir())
    for entry in runtime_dir.iterdir():
        if entry.name == kept.name:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
