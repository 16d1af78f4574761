"""The daemon's configuration: defaults, a TOML file over them, options of the command line over both.

Rules:
1. All faults in one ConfigError; unknown keys are faults.
2. Sockets are paths of at most 107 bytes (sockaddr_un): a longer folder is refused here, not at the first bind.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from governor.errors import ConfigError
from governor.locations import CLIENT_SOCKET, default_runtime_dir, default_state_dir
from governor.units import sizes
from governor.units.fields import AnyDuration  # noqa: TC001  # pydantic reads it at run time
from governor.units.sections import Section, spell, validated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.units.sections import Path as Place

PRIVATE_SOCKET: Final = "private.sock"
WORKER_SOCKET: Final = "workers.sock"
_SOCKET_BYTES: Final = 107
_LONGEST_SOCKET: Final = 40
"""Bytes that a socket's name may take below the runtime folder: ``/<uid>/<conductor>.sock``."""

RELOADABLE: Final = frozenset({"queue_limit", "stop_grace", "disk_reserve", "keep_runs", "keep_days"})
"""Keys whose values a running daemon can change."""


def _path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"must be a path, not {value!r}")
    return Path(value).expanduser().absolute()


def _short(folder: Path) -> Path:
    length, most = len(os.fsencode(folder)), _SOCKET_BYTES - _LONGEST_SOCKET
    if length > most:
        raise ValueError(
            f"{folder} is {length} bytes long, and at most {most} are possible: a socket's path has at "
            f"most {_SOCKET_BYTES} bytes, {_LONGEST_SOCKET} of them for its name; choose a shorter folder (--runtime-dir)"
        )
    return folder


def _ray_address(value: str) -> str:
    host, _, port = value.rpartition(":")
    if value != "local" and not (host and re.fullmatch(r"\d{1,5}", port) and 0 < int(port) < 65536):
        raise ValueError(f"must be 'local' or 'host:port', not {value!r}")
    return value


FilePath: TypeAlias = Annotated[Path, BeforeValidator(_path)]


class RayConfig(Section):
    """`address` is ``local`` (a head of our own) or ``host:port`` of a cluster; `token_path` holds its token."""

    address: Annotated[str, AfterValidator(_ray_address)] = "local"
    num_cpus: Annotated[int, Field(ge=1, le=4096)] = 2
    token_path: FilePath | None = None


class Config(Section):
    """Settings of the daemon. `slots`: runs in work at once; `stop_grace` in seconds; `disk_reserve` in bytes. Ended runs
    beyond both `keep_runs` and `keep_days` are pruned; None keeps all.
    """

    state_dir: FilePath
    runtime_dir: Annotated[FilePath, AfterValidator(_short)]
    slots: Annotated[int, Field(ge=1, le=64)] = 1
    queue_limit: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    ray: RayConfig = RayConfig()
    socket_group: Annotated[str, Field(min_length=1)] | None = None
    log_format: Literal["console", "json"] | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    stop_grace: AnyDuration = 20.0
    disk_reserve: Annotated[int, BeforeValidator(sizes.in_bytes)] = 64 << 20
    keep_runs: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    keep_days: Annotated[float, Field(ge=0, le=100_000)] | None = None

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
    given = _toml(file) if file else {}
    for key, value in (options or {}).items():
        table, _, name = key.rpartition(".")
        section = given.setdefault(table, {}) if table else given
        if value is not None and isinstance(section, dict):
            section[name] = value
    state_dir = given.setdefault("state_dir", default_state_dir(environ))
    if "runtime_dir" not in given:
        given["runtime_dir"] = default_runtime_dir(Path(str(state_dir)), environ)
    config, faults = validated(given, Config)
    if config is None:
        raise ConfigError(str(file) if file else "options", [_told(*fault) for fault in faults])
    return config


def _told(path: Place, message: str) -> str:
    place = spell(path[:-1] if message.startswith("unknown key") else path)
    return f"{place}: {message}" if place else message


def changed(old: Config, new: Config) -> tuple[str, ...]:
    """The keys whose values differ. Raises ConfigError where one of them requires a restart."""
    keys = [key for key in Config.model_fields if getattr(old, key) != getattr(new, key)]
    faults = [f"{key} takes a restart of the daemon" for key in keys if key not in RELOADABLE]
    if faults:
        raise ConfigError("the configuration was not taken over", faults)
    return tuple(keys)


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(file), [f"can't be read: {error.strerror}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(file), [f"is not TOML: {error}"]) from None
