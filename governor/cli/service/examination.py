"""What `governor doctor` looks at. Each check says what it has found, and what is to be done where that keeps a daemon from working (a
fault), or from working well (a note). Nothing is changed.
"""

from __future__ import annotations

import asyncio
import ctypes
import grp
import os
import platform
import pwd
import shutil
import sqlite3
import stat
import sys
import time
from contextlib import closing
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from governor import config as configuration
from governor.daemon.folders import not_to_be_emptied
from governor.daemon.state_lock import is_served
from governor.errors import ConfigError, GovernorError
from governor.executor import Executor
from governor.journal import disk_reserve, schema
from governor.locations import CLIENT_SOCKET, JOURNAL, runtime_dirs
from governor.processes import cgroups
from governor.units import sizes
from governor.version import __version__
from transport.connections import files_needed
from transport.file_limits import LEAST_FILES, file_limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.config import Config

PACKAGES: Final = ("pyzmq", "aiomultiprocess", "ray", "numpy", "structlog", "msgspec", "pydantic", "pyarrow")
NETWORKED: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"})
"""File systems on which SQLite's write-ahead log, shared memory, is not safe."""
SHARED_MEMORY: Final = 512 << 20
"""Less of it, as containers have (64 MiB), is too little for Ray's object store."""
ANSWER_SECONDS: Final = 3.0
_SOCKETS: Final = 3
"""Of the broker of a daemon that does not listen on the network."""
_UNSYNCHRONIZED: Final = 5
"""What adjtimex(2) returns for a clock that nobody keeps right, TIME_ERROR."""


class Finding(NamedTuple):
    """`level` is ok, note or fault; `mend` is what to do."""

    level: str
    what: str
    found: str
    mend: str = ""


def examine(config_file: Path | None, *, state_dir: str | None, broker: str | None) -> list[Finding]:
    """All of them, in the order in which a daemon would meet them. Blocks."""
    findings = [*_python(), *_ray(), *_open_files(), *_clock(), *_cgroup()]
    try:
        config = configuration.load(config_file, options={"state_dir": state_dir})
    except ConfigError as error:
        mend = "the page on configuration has all keys (docs/configuration.md)"
        return [*findings, Finding("fault", "configuration", str(error), mend)]
    findings.append(Finding("ok", "configuration", str(config_file or "defaults")))
    config = _as_served(config)
    findings += [*_folder("state folder", config.state_dir), *_folder("runtime folder", config.runtime_dir)]
    if refused := not_to_be_emptied(config.runtime_dir, config.state_dir):
        findings[-1] = Finding("fault", "runtime folder", refused, "name another with --runtime-dir")
    findings += [
        *_disk(config),
        *_journal(config.state_dir),
        *_socket(config),
        *examine_daemon(config, broker),
    ]
    return findings


# -- the machine ----------------------------------------------------------------------------------------------


def _python() -> Iterator[Finding]:
    where = f"CPython {platform.python_version()}, {sys.executable}; governor {__version__}"
    if platform.system() != "Linux":
        yield Finding("fault", "system", platform.system(), "the daemon needs Linux")
    yield Finding("ok", "Python", where)
    versions, missing = [], []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        mend = f"install it with its dependencies: {sys.executable} -m pip install run-governor"
        yield Finding("fault", "packages", f"{', '.join(missing)} not installed", mend)
    else:
        yield Finding("ok", "packages", ", ".join(versions))


def _ray() -> Iterator[Finding]:
    if find_spec("ray") is None:
        return  # it is one of the packages
    memory = Path("/dev/shm")  # noqa: S108  # it is Ray's, too
    try:
        size = shutil.disk_usage(memory).total
    except OSError as error:
        yield Finding(
            "fault", "Ray", f"{memory}: {error.strerror}", "Ray's object store needs it: mount a tmpfs there"
        )
        return
    found = f"{memory} has {sizes.text(size)} for its object store"
    if size < SHARED_MEMORY:
        mend = f"give it {sizes.text(SHARED_MEMORY)} or more (in a container: --shm-size); else Ray uses files, which are slow"
        yield Finding("note", "Ray", found, mend)
    else:
        yield Finding("ok", "Ray", found)


def _open_files() -> Iterator[Finding]:
    _, hard = file_limits()
    found = "no limit" if hard == sys.maxsize else f"up to {hard:,}"
    mend = "raise the hard limit (`ulimit -Hn`), under systemd with LimitNOFILE=1048576"
    if hard < LEAST_FILES:
        yield Finding("fault", "open files", found, mend)
    elif hard < files_needed(sockets=_SOCKETS):
        yield Finding("note", "open files", f"{found}: fewer connections than usual", mend)
    else:
        yield Finding("ok", "open files", found)


def _clock() -> Iterator[Finding]:
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.create_string_buffer(512))  # modes = 0: it asks, and sets nothing
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if state == _UNSYNCHRONIZED:
        mend = "have chrony or systemd-timesyncd keep it: times on record, and keep_days, are by it"
        yield Finding("note", "clock", f"{now}; nothing keeps it right", mend)
    else:
        yield Finding("ok", "clock", now)


def _cgroup() -> Iterator[Finding]:
    own = cgroups.of_process()
    if own == cgroups.NOWHERE:
        found, mend = "no cgroups v2", "boot with them (systemd.unified_cgroup_hierarchy=1)"
    elif not os.access(own, os.W_OK):
        found, mend = (
            f"{own} is not delegated to this user",
            "run it as a service (docs/service.md)",
        )
    else:
        yield Finding("ok", "cgroups", f"{own} is delegated")
        return
    found += ": what a task starts is found by its mark, unless it resets its limits"
    yield Finding("note", "cgroups", found, mend)


# -- its folders ----------------------------------------------------------------------------------------------


def _folder(what: str, folder: Path) -> Iterator[Finding]:
    there = next((place for place in (folder, *folder.parents) if _is_there(place)), Path("/"))
    if not os.access(there, os.W_OK | os.X_OK):
        mend = f"be its owner, {_owner(there)}, or name another with --{what.split(maxsplit=1)[0]}-dir"
        yield Finding("fault", what, f"{there} can't be written to", mend)
    elif there != folder:
        yield Finding("ok", what, f"{folder}, which `serve` makes")
    elif not folder.is_dir():
        yield Finding("fault", what, f"{folder} is no folder", "move it away")
    elif folder.stat().st_uid != os.geteuid() and os.geteuid() != 0:
        yield Finding("fault", what, f"{folder} is of {_owner(folder)}", f"run it as {_owner(folder)}")
    elif what == "state folder" and stat.S_IMODE(folder.stat().st_mode) & 0o077:
        yield Finding("note", what, f"{folder} is open to others", f"chmod 700 {folder}")
    else:
        yield Finding("ok", what, str(folder))


def _owner(folder: Path) -> str:
    uid = folder.stat().st_uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _disk(config: Config) -> Iterator[Finding]:
    folder = next(place for place in (config.state_dir, *config.state_dir.parents) if _is_there(place))
    kind = _file_system(folder)
    if kind in NETWORKED:
        mend = "keep state_dir on a disk of this machine: SQLite's log is shared memory"
        yield Finding("fault", "file system", f"{folder} is on {kind}", mend)
    free = sizes.text(shutil.disk_usage(folder).free)
    least = config.disk_reserve + disk_reserve.RESERVE_BYTES
    try:
        disk_reserve.require(folder, least)
    except GovernorError as error:
        yield Finding("fault", "disk", str(error), "`governor prune --state-dir` works without a daemon, too")
        return
    files = disk_reserve.files_left(folder)
    yield Finding(
        "ok",
        "disk",
        f"{free} left ({kind}){'' if files is None else f', room for {files:,} files'}; disk_reserve is {sizes.text(config.disk_reserve)}",
    )


def _file_system(folder: Path) -> str:
    """The type of the file system that is mounted there, as the kernel calls it."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == number:
            return rest.split()[0]
    return "an unknown file system"


def _journal(state_dir: Path) -> Iterator[Finding]:
    path = state_dir / JOURNAL
    try:
        there = path.exists()
    except PermissionError:
        return  # it is said of the folder
    if not there:
        yield Finding("ok", "journal", "none yet")
        return
    try:
        with closing(_read_only(path)) as journal:
            (version,) = journal.execute("PRAGMA user_version").fetchone()
            kept = schema.KEPT if version == schema.SCHEMA_VERSION else "1"
            counted = f"SELECT count(CASE WHEN {kept} THEN 1 END), max(submitted_at) FROM runs"  # noqa: S608  # our own schema
            (runs, newest) = journal.execute(counted).fetchone()
    except sqlite3.Error as error:
        yield Finding(
            "fault",
            "journal",
            str(schema.failure(path, "read", error)),
            "docs/operations.md, a damaged journal",
        )
        return
    if version > schema.SCHEMA_VERSION:
        found = f"{path} is of schema {version}, governor {__version__} knows up to {schema.SCHEMA_VERSION}"
        yield Finding(
            "fault", "journal", found, "install the newer governor that wrote it, or restore a backup"
        )
    elif newest is not None and newest > time.time() + 60:
        ahead = round((newest - time.time()) / 60)
        mend = "set the clock right: runs are kept, and pruned, by it"
        yield Finding("fault", "journal", f"the newest run is {ahead:,} minutes in the future", mend)
    else:
        older = (
            ""
            if version == schema.SCHEMA_VERSION
            else f", of schema {version}: the next start brings it up to date"
        )
        yield Finding(
            "ok",
            "journal",
            f"{runs:,} run{'' if runs == 1 else 's'}, {sizes.text(path.stat().st_size)}{older}",
        )


def _read_only(path: Path) -> sqlite3.Connection:
    """Without files beside it, where none are: else SQLite makes some, for whoever runs this."""
    if path.with_name(f"{path.name}-wal").exists():
        return schema.connect_read_only(path)
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)


# -- the daemon -----------------------------------------------------------------------------------------------


def _as_served(config: Config) -> Config:
    """With the runtime folder of the daemon that is at work on its state folder, where systemd has given it another one."""
    if _is_there(config.runtime_dir / CLIENT_SOCKET) or not is_served(config.state_dir):
        return config
    found = [folder for folder in runtime_dirs() if _is_there(folder / CLIENT_SOCKET)]
    return config.model_copy(update={"runtime_dir": found[0]}) if found else config


def _is_there(path: Path) -> bool:
    """False for what is in a folder of another user, as $XDG_RUNTIME_DIR of root may be."""
    try:
        return path.exists()
    except PermissionError:
        return False


def _socket(config: Config) -> Iterator[Finding]:
    if config.socket_group is not None:
        try:
            members = grp.getgrnam(config.socket_group)
        except KeyError:
            mend = f"groupadd {config.socket_group}, or another socket_group"
            yield Finding("fault", "socket group", f"there is no group {config.socket_group!r}", mend)
        else:
            yield Finding(
                "ok", "socket group", f"{members.gr_name}: {', '.join(members.gr_mem) or 'no members'}"
            )
    socket = config.runtime_dir / CLIENT_SOCKET
    served = is_served(config.state_dir)
    if served and not _is_there(socket):
        mend = "the daemon was started with another runtime folder: set GOVERNOR_BROKER, or name its configuration"
        yield Finding(
            "note", "socket", f"a daemon is at work on {config.state_dir}, and {socket} is not there", mend
        )
    else:
        yield Finding("ok", "socket", f"{socket}{'' if _is_there(socket) else ', where none is at work'}")


def examine_daemon(config: Config, broker: str | None) -> Iterator[Finding]:
    """Whether one answers, and with which version."""
    socket = config.runtime_dir / CLIENT_SOCKET
    endpoint = broker or f"ipc://{socket}"
    if broker is None and not _is_there(socket) and not is_served(config.state_dir):
        yield Finding("note", "daemon", "none at work", "`governor serve`, or `systemctl start run-governor`")
        return

    async def version() -> str:
        async with Executor(endpoint, timeout=ANSWER_SECONDS) as executor:
            return (await executor.status()).version

    try:
        found = asyncio.run(version())
    except GovernorError as error:
        yield Finding("fault", "daemon", str(error), "its log says why: `journalctl -u run-governor`")
        return
    if found != __version__:
        mend = "restart the daemon after an upgrade, or use the client of its version"
        yield Finding("fault", "daemon", f"governor {found}, and this is {__version__}", mend)
    else:
        yield Finding("ok", "daemon", f"governor {found} answers at {endpoint}")
