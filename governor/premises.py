"""The daemon's folders, and its forkserver in one of them: taken first, so that the forkserver imports beside the daemon.

The runtime folder belongs to one daemon: what lies in it is of this invocation, or of one that was killed.
"""

from __future__ import annotations

import shutil
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING

from governor import disk, reaping
from governor.conductors import process
from governor.errors import ConfigError, NotPermitted

if TYPE_CHECKING:
    from governor.config import Config


def take(config: Config) -> None:
    """Makes both folders, marks what is started from now on as this house's, and begins to warm the forkserver up. May be
    called again. Raises NotPermitted, ConfigError, NoRoom.
    """
    for folder in (config.state_dir, config.runtime_dir):
        own(folder)
    reaping.mark(config.state_dir)
    try:
        process.warm_up(folder=config.runtime_dir)
    except OSError as error:
        raise disk.no_room(config.runtime_dir, error) or error from None


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
