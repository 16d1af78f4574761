"""The daemon's folders, and its forkserver in one of them: acquired first, so that the forkserver imports while the
daemon starts.

The runtime folder belongs to one daemon, which removes its content: that is from this invocation, or from one that was killed. So nothing
is put there before its lock is held, because another daemon that starts at the same time clears it. A folder that no daemon has marked as its
own is refused if there is anything in it.
"""

from __future__ import annotations

import grp
import os
import stat
from contextlib import contextmanager, suppress
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.config import PRIVATE_SOCKET, WORKER_SOCKET
from governor.daemon.state_lock import runtime_lock, state_lock
from governor.errors import ConfigError, NotPermitted
from governor.files import WatchedFiles
from governor.journal import disk_reserve, removal
from governor.locations import CLIENT_SOCKET
from governor.processes import leftovers, open_files, process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.config import Config

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
MARK: Final = ".run-governor"
"""A file in each runtime folder: a daemon may empty it. It is there before all else, and goes last."""
OF_PROCESSES: Final = "pymp-"
"""What multiprocessing removes when a daemon has ended, after the mark."""

log = logs.get_logger()


@contextmanager
def acquired(config: Config) -> Iterator[None]:
    """Raises the limit of open files, makes and locks both folders, marks all processes started from now on as this
    instance's, and starts to warm up the forkserver. Raises NotPermitted, ConfigError, NoRoom, AlreadyServed: then no
    process was started, and nothing was removed.
    """
    open_files.raise_limit()
    if fault := not_to_be_emptied(config.runtime_dir, config.state_dir):
        raise ConfigError("runtime_dir", [fault])
    for folder in (config.state_dir, config.runtime_dir):
        make_private(folder)
    with state_lock(config.state_dir), runtime_lock(config.runtime_dir):
        if config.socket_group is not None:
            grant_group(config.socket_group, config.runtime_dir)
        _mark(config.runtime_dir)
        leftovers.mark(config.state_dir)
        try:
            _warm_up(config.runtime_dir)
            yield
        finally:
            process.shut_down()
            leftovers.unmark(config.state_dir)


def not_to_be_emptied(runtime_dir: Path, state_dir: Path) -> str:
    """Why the daemon must not empty the folder, or ""."""
    if Path(os.path.realpath(state_dir)).is_relative_to(os.path.realpath(runtime_dir)):
        content = f"its state_dir, {state_dir}"
    else:
        content = _files_of_others(runtime_dir)
    return (
        content
        and f"{runtime_dir} has {content}, and the daemon removes all that is there: choose a folder of its own"
    )


def _files_of_others(runtime_dir: Path) -> str:
    """A few of their names, if no daemon has had the folder."""
    try:
        names = sorted(os.listdir(runtime_dir))  # noqa: PTH208  # names are what is asked for
    except OSError:  # it is not there, or the lock says what is wrong with it
        return ""
    others = [name for name in names if not name.startswith(OF_PROCESSES)]
    if {MARK, CLIENT_SOCKET, PRIVATE_SOCKET, WORKER_SOCKET} & {*others}:
        return ""
    return ", ".join(others[:3]) + (", ..." if others[3:] else "")


def _mark(runtime_dir: Path) -> None:
    try:
        (runtime_dir / MARK).touch(mode=0o600)
    except OSError as error:
        raise disk_reserve.no_room(runtime_dir, error) or error from None


def _warm_up(runtime_dir: Path) -> None:
    try:
        process.warm_up(folder=runtime_dir)
    except OSError as error:
        raise disk_reserve.no_room(runtime_dir, error) or error from None


def make_private(folder: Path) -> None:
    """Makes the folder with mode 0700 if it does not exist. Raises NotPermitted, ConfigError, NoRoom."""
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


def warn_if_shared(folder: Path) -> None:
    """Logs a warning if other users can access the daemon's private folder."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & OTHERS:
        log.warning(
            "state_dir.open_to_others", folder=str(folder), mode=f"{mode:04o}", mend=f"chmod 700 {folder}"
        )


def grant_group(group: str, runtime_dir: Path) -> None:
    """Lets the group reach the clients' socket in the folder, but not list it. Raises ConfigError."""
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError("socket_group", [f"there is no group {group!r}"]) from None
    folder = runtime_dir.resolve()
    if not _can_traverse(folder, gid):
        try:
            os.chown(folder, -1, gid)
            folder.chmod(0o710)
        except OSError as error:
            fault = f"{folder} can't be given to group {group!r}: {error.strerror}; be a member of it, or give it the folder"
            raise ConfigError("socket_group", [fault]) from error
    if closed := next((each for each in folder.parents if not _can_traverse(each, gid)), None):
        fault = (
            f"group {group!r} can't reach {folder}, because it has no access to {closed} (mode {stat.S_IMODE(closed.stat().st_mode):04o}): "
            "choose another --runtime-dir, or open that folder (chmod o+x)"
        )
        raise ConfigError("socket_group", [fault])


def _can_traverse(folder: Path, gid: int) -> bool:
    found = folder.stat()
    return bool(found.st_mode & (stat.S_IXGRP if found.st_gid == gid else stat.S_IXOTH))


@contextmanager
def cleared(runtime_dir: Path) -> Iterator[None]:
    """Removes the content of the folder, now and at the end; at the end only if the folder has not been replaced,
    because then it is another daemon's.
    """
    _clear(runtime_dir)
    ours = WatchedFiles(runtime_dir)
    try:
        yield
    finally:
        if not ours.removed():
            _clear(runtime_dir)
            with suppress(OSError):  # something can't be removed
                (runtime_dir / MARK).unlink(missing_ok=True)


def _clear(runtime_dir: Path) -> None:
    """Removes everything but the mark, and the forkserver's own folder, which multiprocessing removes when this process ends.

    The folder itself may already have been removed.
    """
    if not runtime_dir.exists():
        return
    kept = {MARK, Path(util.get_temp_dir()).name}
    for entry in runtime_dir.iterdir():
        if entry.name in kept:
            continue
        if entry.is_dir() and not entry.is_symlink():
            removal.remove(entry)
        else:
            entry.unlink(missing_ok=True)
