"""Where the daemon's folders are, and where a client finds its socket.

Folders: systemd's variables, then the XDG folders, then their defaults. Nothing is created here.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor.errors import ConfigError, NotPermitted, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME: Final = "run-governor"
CLIENT_SOCKET: Final = "broker.sock"
JOURNAL: Final = "governor.db"
"""In the state folder: what has it is the folder of a daemon."""
RUNS: Final = "runs"
"""In the state folder: the files of each run, in a folder with its id."""
CODE: Final = "code"
"""In the folder of a run: the copy of its code, if it has one."""
KEYS: Final = "keys"
"""In the state folder: who may reach its daemon through the network."""
STALE_SECONDS: Final = 3.0
"""A restarted broker is back by then, also when its forkserver must restart."""
RETRY_SECONDS: Final = 0.2


def default_state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """$STATE_DIRECTORY, else $XDG_STATE_HOME/run-governor, else ~/.local/state/run-governor. Raises ConfigError for a user without a
    home folder, as the others here do.
    """
    if named := _named(environ, "STATE_DIRECTORY", "XDG_STATE_HOME"):
        return named[0]
    return _home(environ) / ".local" / "state" / NAME


def secret_folders(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where secrets are looked for: $CREDENTIALS_DIRECTORY of systemd, then ``secrets`` in $XDG_CONFIG_HOME/run-governor or
    ~/.config/run-governor.
    """
    given = environ.get("CREDENTIALS_DIRECTORY")
    return [*([Path(given)] if given else []), config_dir(environ) / "secrets"]


def config_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """A user's own settings: $XDG_CONFIG_HOME/run-governor, else ~/.config/run-governor."""
    home = environ.get("XDG_CONFIG_HOME") or _home(environ) / ".config"
    return Path(home) / NAME


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """What can be had again: $XDG_CACHE_HOME/run-governor, else ~/.cache/run-governor."""
    home = environ.get("XDG_CACHE_HOME") or _home(environ) / ".cache"
    return Path(home) / NAME


def default_runtime_dir(state_dir: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """$RUNTIME_DIRECTORY, else $XDG_RUNTIME_DIR/run-governor, else /run/run-governor for root, else below `state_dir`."""
    if named := _named(environ, "RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        return named[0]
    return Path("/run") / NAME if os.geteuid() == 0 else state_dir / "run"


def run_folders(state_dir: Path, uid: str) -> list[Path]:
    """The folders of the runs whose ids begin with `uid`, of a daemon and of `governor run`; if one has that id, of that one alone.
    Such that may not be read are left out.
    """
    places = ("runs/*", "single/*/runs/*")
    found = [
        run for place in places for run in sorted(state_dir.glob(place)) if uid and run.name.startswith(uid)
    ]
    return [run for run in found if run.name == uid] or found


def single_run_folders(state_dir: Path, uid: str) -> list[Path]:
    """The same of `governor run` alone."""
    return [run for run in run_folders(state_dir, uid) if state_dir / "single" in run.parents]


def runtime_dirs(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The folders in which a client looks for a daemon's socket, in this order."""
    folders = [*_named(environ, "RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"), Path("/run") / NAME]
    with suppress(ConfigError):
        folders.append(default_state_dir(environ) / "run")
    return list(dict.fromkeys(folders))


def find_broker(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The endpoint of the daemon's broker: `given`, $GOVERNOR_BROKER, or the first runtime folder that holds its socket. A folder of
    another user is passed over.

    Raises:
        Unreachable: there is no such socket; the message names the folders that were searched.
        NotPermitted: there is none, and a folder may not be searched.
    """
    if endpoint := given or environ.get("GOVERNOR_BROKER"):
        return endpoint if "://" in endpoint else f"ipc://{endpoint}"
    folders = runtime_dirs(environ)
    closed = None
    for folder in folders:
        path = folder / CLIENT_SOCKET
        try:
            if stat.S_ISSOCK(path.stat().st_mode):
                return f"ipc://{path}"
        except PermissionError:
            closed = closed or path
        except OSError:
            continue
    if closed:
        raise _of_another_user(closed)
    raise Unreachable(" or ".join(str(folder / CLIENT_SOCKET) for folder in folders), "no such socket")


async def refuse_stale_socket(endpoint: str) -> None:
    """A restarted broker binds its socket again soon. Raises Unreachable for a socket that stays unbound, NotPermitted for that of
    another user.
    """
    path = endpoint.removeprefix("ipc://")
    if path == endpoint:
        return
    until = asyncio.get_running_loop().time() + STALE_SECONDS
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(path)
        except PermissionError:
            raise _of_another_user(Path(path)) from None
        except OSError as error:
            unbound = isinstance(error, ConnectionRefusedError | FileNotFoundError)
            if not unbound or asyncio.get_running_loop().time() > until:
                raise Unreachable(endpoint, error.strerror or str(error)) from error
            await asyncio.sleep(RETRY_SECONDS)
        else:
            writer.close()
            return


async def refuse_unknown_host(endpoint: str, *, patience: float) -> None:
    """Raises Unreachable for a machine whose name has no address; where no name server answers, after so many seconds."""
    scheme, _, address = endpoint.partition("://")
    if scheme != "tcp":
        return
    host = address.rpartition(":")[0].strip("[]")
    loop = asyncio.get_running_loop()
    until = loop.time() + patience
    while True:
        try:
            await loop.getaddrinfo(host, None)
        except (socket.gaierror, UnicodeError) as error:  # the latter for a label that is empty, or too long
            is_away = getattr(error, "errno", None) == socket.EAI_AGAIN
            if not is_away or loop.time() > until:
                what = "can't be looked up" if is_away else "is the name of no machine that is known here"
                text = f"{host!r} in {endpoint} {what}: {getattr(error, 'strerror', None) or error}"
                raise Unreachable(endpoint, text=text) from error
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


def _home(environ: Mapping[str, str]) -> Path:
    try:
        return Path(environ.get("HOME") or "~").expanduser()
    except RuntimeError:
        fault = f"is not set, and the system knows no home folder of uid {os.geteuid()}: set it, or XDG_STATE_HOME, XDG_CONFIG_HOME and XDG_CACHE_HOME"
        raise ConfigError("HOME", [fault]) from None


def _of_another_user(socket: Path) -> NotPermitted:
    return NotPermitted(
        f"{socket} is another user's: ask to be let in (`socket_group`), or start a daemon of your own"
    )


def _named(environ: Mapping[str, str], systemd: str, xdg: str) -> list[Path]:
    """The folders of these variables. systemd joins several with colons: the first one counts. The XDG specification
    ignores a relative path.
    """
    folders = [(environ.get(systemd, "").partition(":")[0], ""), (environ.get(xdg, ""), NAME)]
    return [Path(folder) / below for folder, below in folders if os.path.isabs(folder)]  # noqa: PTH117  # no Path for what is none
