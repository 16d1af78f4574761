"""The daemon's configuration: defaults, a TOML file over them, options of the command line over both.

Rules:
1. All faults in one ConfigError; unknown keys are faults.
2. Folders: systemd's variables, then the XDG folders, then their defaults. `load` creates nothing.
3. Sockets are paths of at most 107 bytes (sockaddr_un): a longer folder is refused here, not at the first bind.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from governor.errors import ConfigError, NotPermitted, Unreachable
from governor.units import durations, sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NAME: Final = "run-governor"
CLIENT_SOCKET: Final = "broker.sock"
PRIVATE_SOCKET: Final = "private.sock"
WORKER_SOCKET: Final = "workers.sock"
_SOCKET_BYTES: Final = 107
_LONGEST_SOCKET: Final = 40
"""Bytes that a socket's name may take below the runtime folder: ``/<uid>/<conductor>.sock``."""

RELOADABLE: Final = frozenset({"queue_limit", "stop_grace", "disk_reserve", "keep_runs", "keep_days"})
"""Keys whose values a running daemon can change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """`address` is ``local`` (a head of our own) or ``host:port`` of a cluster; `token_path` holds its token."""

    address: str = "local"
    num_cpus: int = 2
    token_path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of the daemon. `slots`: runs in work at once; `stop_grace` in seconds; `disk_reserve` in bytes. Ended runs
    beyond both `keep_runs` and `keep_days` are pruned; None keeps all.
    """

    state_dir: Path
    runtime_dir: Path
    slots: int = 1
    queue_limit: int = 1000
    ray: RayConfig = RayConfig()
    socket_group: str | None = None
    log_format: Literal["console", "json"] | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    stop_grace: float = 20.0
    disk_reserve: int = 64 << 20
    keep_runs: int | None = None
    keep_days: float | None = None

    @property
    def client_endpoint(self) -> str:
        """The endpoint for executors."""
        return f"ipc://{self.runtime_dir / CLIENT_SOCKET}"

    @property
    def private_endpoint(self) -> str:
        """The endpoint for the clients of conductors and of the daemon: the only way to the services of runs."""
        return f"ipc://{self.runtime_dir / PRIVATE_SOCKET}"

    @property
    def worker_endpoint(self) -> str:
        """The endpoint for the services of conductors and of the governor."""
        return f"ipc://{self.runtime_dir / WORKER_SOCKET}"


def default_state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """$STATE_DIRECTORY, else $XDG_STATE_HOME/run-governor, else ~/.local/state/run-governor."""
    if given := _first(environ.get("STATE_DIRECTORY")):
        return given
    if (given := _absolute(environ.get("XDG_STATE_HOME"))) is not None:
        return given / NAME
    return Path(environ.get("HOME") or "~").expanduser() / ".local" / "state" / NAME


def default_runtime_dir(state_dir: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """$RUNTIME_DIRECTORY, else $XDG_RUNTIME_DIR/run-governor, else /run/run-governor for root, else below `state_dir`."""
    if given := _first(environ.get("RUNTIME_DIRECTORY")):
        return given
    if (given := _absolute(environ.get("XDG_RUNTIME_DIR"))) is not None:
        return given / NAME
    return Path("/run") / NAME if os.geteuid() == 0 else state_dir / "run"


def runtime_dirs(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The folders in which a client looks for a daemon's socket, in this order."""
    folders = [_first(environ.get("RUNTIME_DIRECTORY"))]
    if (given := _absolute(environ.get("XDG_RUNTIME_DIR"))) is not None:
        folders.append(given / NAME)
    folders += [Path("/run") / NAME, default_state_dir(environ) / "run"]
    return list(dict.fromkeys(folder for folder in folders if folder is not None))


def find_broker(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The endpoint of the daemon's broker: `given`, $GOVERNOR_BROKER, or the first runtime folder that holds its socket.

    Raises:
        Unreachable: there is no such socket; the message names the folders that were searched.
    """
    if endpoint := given or environ.get("GOVERNOR_BROKER"):
        return endpoint if "://" in endpoint else f"ipc://{endpoint}"
    folders = runtime_dirs(environ)
    for folder in folders:
        socket = folder / CLIENT_SOCKET
        try:
            if stat.S_ISSOCK(socket.stat().st_mode):
                return f"ipc://{socket}"
        except PermissionError:
            raise NotPermitted(
                f"may not look at {socket}: ask for the group that `socket_group` names"
            ) from None
        except OSError:
            continue
    raise Unreachable(" or ".join(str(folder / CLIENT_SOCKET) for folder in folders), "no such socket")


def load(
    file: Path | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """The configuration of `file`, with `options` over it (same keys, ``ray.address`` for a key of a table).

    Options that are None are ignored.

    Raises:
        ConfigError: with every fault.
    """
    source = str(file) if file else "options"
    faults: list[str] = []
    given = _flat(_toml(file)) if file else {}
    given |= {key: value for key, value in (options or {}).items() if value is not None}
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in _CHECKS:
            near = difflib.get_close_matches(key, _CHECKS, n=1)
            faults.append(f"unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
            continue
        try:
            values[key] = _CHECKS[key](value)
        except ValueError as error:
            faults.append(f"{key}: {error}")
    state_dir = values.pop("state_dir", None) or default_state_dir(environ)
    runtime_dir = values.pop("runtime_dir", None) or default_runtime_dir(state_dir, environ)
    faults += _too_long(runtime_dir)
    if faults:
        raise ConfigError(source, faults)
    ray = RayConfig(
        **{key.partition(".")[2]: values.pop(key) for key in list(values) if key.startswith("ray.")}
    )
    return Config(state_dir=state_dir, runtime_dir=runtime_dir, ray=ray, **values)


def changed(old: Config, new: Config) -> tuple[str, ...]:
    """The keys whose values differ. Raises ConfigError where one of them requires a restart."""
    keys = [key.name for key in fields(old) if getattr(old, key.name) != getattr(new, key.name)]
    faults = [f"{key} takes a restart of the daemon" for key in keys if key not in RELOADABLE]
    if faults:
        raise ConfigError("the configuration was not taken over", faults)
    return tuple(keys)


def _too_long(runtime_dir: Path) -> list[str]:
    length = len(os.fsencode(runtime_dir))
    most = _SOCKET_BYTES - _LONGEST_SOCKET
    if length <= most:
        return []
    fault = (
        f"runtime_dir: {runtime_dir} is {length} bytes long, and at most {most} are possible: a socket's path has at "
        f"most {_SOCKET_BYTES} bytes, {_LONGEST_SOCKET} of them for its name; choose a shorter folder (--runtime-dir)"
    )
    return [fault]


def _first(folders: str | None) -> Path | None:
    """The first of the folders that systemd joins with colons."""
    return _absolute(folders.partition(":")[0]) if folders else None


def _absolute(folder: str | None) -> Path | None:
    """None for a relative path: the XDG specification ignores it."""
    return Path(folder) if folder and os.path.isabs(folder) else None  # noqa: PTH117  # no Path for what is none


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(file), [f"can't be read: {error.strerror}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(file), [f"is not TOML: {error}"]) from None


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


# -- one check for each key --------------------------------------------------------------------------------------


def _whole(least: int, most: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}, not {value!r}")
        return value

    return check


def _days(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 100_000:
        raise ValueError(f"must be a number of days from 0 to 100000, not {value!r}")
    return float(value)


def _one_of(*choices: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, not {value!r}")
        return str(value)

    return check


def _folder(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"must be a path, not {value!r}")
    return Path(value).expanduser().absolute()


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"must be a text, not {value!r}")
    return value


def _ray_address(value: Any) -> str:
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if value != "local" and not (host and re.fullmatch(r"\d{1,5}", port) and 0 < int(port) < 65536):
        raise ValueError(f"must be 'local' or 'host:port', not {value!r}")
    return str(value)


_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "state_dir": _folder,
    "runtime_dir": _folder,
    "slots": _whole(1, 64),
    "queue_limit": _whole(1, 1_000_000),
    "ray.address": _ray_address,
    "ray.num_cpus": _whole(1, 4096),
    "ray.token_path": _folder,
    "socket_group": _text,
    "log_format": _one_of("console", "json"),
    "log_level": _one_of("debug", "info", "warning", "error"),
    "stop_grace": durations.seconds,
    "disk_reserve": sizes.in_bytes,
    "keep_runs": _whole(0, 1_000_000_000),
    "keep_days": _days,
}
