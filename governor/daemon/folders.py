"""The daemon's folders, and its forkserver in one of them: taken first, so that the forkserver imports beside the daemon.

The runtime folder belongs to one daemon: what lies in it is of this invocation, or of one that was killed. So nothing is put
there before its lock is held: another one that starts at the same time clears it.
"""

from __future__ import annotations

import grp
import os
import shutil
import stat
from contextlib import contextmanager
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.daemon.state_lock import StateLock, runtime_lock
from governor.errors import ConfigError, NotPermitted
from governor.journal import disk_reserve
from governor.processes import leftovers, open_files, process
from governor.runs.file_watch import Files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.config import Config

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO

log = logs.get_logger()


@contextmanager
def taken(config: Config) -> Iterator[None]:
    """Raises the limit of open files, makes both folders and locks them, marks what is started from now on as this house's, and
    begins to warm the forkserver up. Raises NotPermitted, ConfigError, NoRoom, AlreadyServed: nothing was started then, and
    nothing lies in the folders.
    """
    open_files.raise_limit()
    for folder in (config.state_dir, config.runtime_dir):
        own(folder)
    with StateLock(config.state_dir), runtime_lock(config.runtime_dir):
        if config.socket_group is not None:
            let_in(config.socket_group, config.runtime_dir)
        leftovers.mark(config.state_dir)
        try:
            _warm_up(config.runtime_dir)
            yield
        finally:
            process.shut_down()
            leftovers.unmark(config.state_dir)


def _warm_up(runtime_dir: Path) -> None:
    try:
        process.warm_up(folder=runtime_dir)
    except OSError as error:
        raise disk_reserve.no_room(runtime_dir, error) or error from None


def own(folder: Path) -> None:
    """Makes the folder 0700 where it is not there. Raises NotPermitted, ConfigError, NoRoom."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except PermissionError as error:
        raise NotPermitted(
            f"{folder} can't be made: {error.strerror}; choose another with --state-dir, --runtime-dir"
        ) from error
    except OSError as error:
        raise disk_reserve.no_room(folder, error) or ConfigError(
            str(folder), [f"can't be made a folder: {error.strerror}"]
        ) from error


def tell_of_others(folder: Path) -> None:
    """In the log, where a folder that is to be ours alone lets somebody else in."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & OTHERS:
        log.warning(
            "state_dir.open_to_others", folder=str(folder), mode=f"{mode:04o}", mend=f"chmod 700 {folder}"
        )


def let_in(group: str, runtime_dir: Path) -> None:
    """The group reaches the clients' socket in the folder, and can't list it. Raises ConfigError."""
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError("socket_group", [f"there is no group {group!r}"]) from None
    folder = runtime_dir.resolve()
    if not _may_pass(folder, gid):
        try:
            os.chown(folder, -1, gid)
            folder.chmod(0o710)
        except OSError as error:
            fault = f"{folder} can't be given to group {group!r}: {error.strerror}; be a member of it, or give it the folder"
            raise ConfigError("socket_group", [fault]) from error
    if shut := next((each for each in folder.parents if not _may_pass(each, gid)), None):
        fault = (
            f"group {group!r} can't reach {folder}, for it may not pass {shut} (mode {stat.S_IMODE(shut.stat().st_mode):04o}): "
            "choose another --runtime-dir, or open that folder (chmod o+x)"
        )
        raise ConfigError("socket_group", [fault])


def _may_pass(folder: Path, gid: int) -> bool:
    found = folder.stat()
    return bool(found.st_mode & (stat.S_IXGRP if found.st_gid == gid else stat.S_IXOTH))


@contextmanager
def cleared(runtime_dir: Path) -> Iterator[None]:
    """Removes what lies in the folder, now and at the end; then not where another one has taken its place meanwhile: that is
    another daemon's.
    """
    _clear(runtime_dir)
    ours = Files(runtime_dir)
    try:
        yield
    finally:
        if not ours.removed():
            _clear(runtime_dir)


def _clear(runtime_dir: Path) -> None:
    """Removes everything but the forkserver's own folder, which multiprocessing removes when this process ends.

    Somebody else may have removed the folder.
    """
    if not runtime_dir.exists():
        return
    kept = Path(util.get_temp_dir())
    for entry in runtime_dir.iterdir():
        if entry.name == kept.name:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
