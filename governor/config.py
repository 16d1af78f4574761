"""The daemon's configuration: defaults, a TOML file over them, options of the command line over both.

Rules:
1. All faults in one ConfigError; unknown keys are faults.
2. Sockets are paths of at most 107 bytes (sockaddr_un): a longer folder is refused here, not at the first bind.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from governor.errors import ConfigError
from governor.locations import CLIENT_SOCKET, KEYS, default_runtime_dir, default_state_dir
from governor.units import sizes
from governor.units.fields import LIST, WORD, AnyDuration, each_once
from governor.units.hooks import Hooks
from governor.units.sections import Section, spell, validated
from transport import endpoints
from transport.endpoints import IPC_PATH_LIMIT
from transport.errors import BadEndpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.units.sections import Path as Place

PRIVATE_SOCKET: Final = "private.sock"
WORKER_SOCKET: Final = "workers.sock"
_LONGEST_SOCKET: Final = 40
"""Bytes that a socket's name may take below the runtime folder: ``/<uid>/<conductor>.sock``."""

RELOADABLE: Final = frozenset(
    {
        *("slots", "queue_limit", "machine", "owners", "entries", "hooks", "stop_grace"),
        *("disk_reserve", "keep_runs", "keep_days", "logs"),
    }
)
"""Keys whose values a running daemon can change."""


def _path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"must be a path, not {value!r}")
    try:
        path = Path(value).expanduser().absolute()
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{str(path)!a} is not valid UTF-8: rename the folder") from None
    except RuntimeError:
        raise ValueError(f"{value}: no user of that name has a home folder; give the whole path") from None
    return path


def _short(folder: Path) -> Path:
    length, most = len(os.fsencode(folder)), IPC_PATH_LIMIT - _LONGEST_SOCKET
    if length > most:
        raise ValueError(
            f"{folder} is {length} bytes long, and at most {most} are possible: a socket's path has at "
            f"most {IPC_PATH_LIMIT} bytes, {_LONGEST_SOCKET} of them for its name; choose a shorter folder (--runtime-dir)"
        )
    return folder


def _ray_address(value: str) -> str:
    port = re.fullmatch(r"[^/]+:([0-9]{1,5})", value)
    if value == "local" or (port and 0 < int(port[1]) < 65536):
        return value
    raise ValueError(f"must be 'local' or 'host:port', not {value!r}")


def _metrics_address(value: str) -> str:
    if value.startswith("unix:"):
        path = value.removeprefix("unix:")
        if not path.startswith("/") or len(os.fsencode(path)) > IPC_PATH_LIMIT:
            raise ValueError(f"must name an absolute path of at most {IPC_PATH_LIMIT} bytes, not {path!r}")
        return value
    host, _, port = value.rpartition(":")
    if not host or "/" in host or not re.fullmatch(r"[0-9]{1,5}", port) or not int(port) < 65536:
        raise ValueError(f"must be 'unix:/PATH' or a loopback address like '127.0.0.1:9464', not {value!r}")
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ValueError(
            f"{host} can be reached from other machines, and whoever reaches it reads all figures: use 127.0.0.1, [::1] or "
            "unix:/PATH, with a proxy that asks who it is in front of it"
        )
    return value


def _network_endpoint(value: str) -> str:
    try:
        return str(endpoints.parse_bind(value, keyed=True))
    except BadEndpoint as error:
        raise ValueError(f"{error.reason}, not {value!r}") from None


FilePath: TypeAlias = Annotated[Path, BeforeValidator(_path)]
_GpuNames: TypeAlias = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], AfterValidator(each_once)]


class RayConfig(Section):
    """The Ray cluster that runs with tasks use."""

    address: Annotated[
        str,
        AfterValidator(_ray_address),
        Field(
            description="`local`: a Ray head is started for the runs of this daemon; `host:port`: the GCS of a cluster that "
            "exists."
        ),
    ] = "local"
    num_cpus: Annotated[int, Field(ge=1, le=4096, description="CPUs that the local head offers.")] = 2
    token_path: Annotated[
        FilePath | None,
        Field(
            description="File with the cluster's token; a local head makes its own, in the state folder.",
            examples=["/etc/run-governor/ray.token"],
        ),
    ] = None


class LogsConfig(Section):
    """What is kept of the output of user code (`governor logs`)."""

    run_bytes: Annotated[
        int,
        BeforeValidator(sizes.in_bytes),
        Field(
            ge=1 << 20,
            description="Bytes that the lines of one run may take on disk; beyond them the first and the last lines are kept.",
        ),
    ] = 64 << 20
    lines_per_second: Annotated[
        int,
        Field(
            ge=10,
            le=10_000,
            description="Lines a second that are kept of each process and stream, ten seconds' worth at once; beyond them the newest.",
        ),
    ] = 2000
    bytes_per_second: Annotated[
        int,
        BeforeValidator(sizes.in_bytes),
        Field(ge=1 << 14, description="As `lines_per_second`, in bytes."),
    ] = 1 << 20


class MachineConfig(Section):
    """What runs with `requires` share; null: as found, of what the daemon may use."""

    cpus: Annotated[float | None, Field(gt=0, le=65536, description="Processors.")] = None
    gpus: Annotated[
        Annotated[
            Annotated[int, Field(ge=0, le=1024), Tag(WORD)]
            | Annotated[_GpuNames, Field(strict=False), Tag(LIST)],
            Discriminator(lambda given: LIST if isinstance(given, list | tuple) else WORD),
        ]
        | None,
        Field(
            description="GPUs: their number, or their names as of `CUDA_VISIBLE_DEVICES`; null: those of that variable, else of /dev.",
            examples=[4, ["0", "2"]],
        ),
    ] = None
    memory: Annotated[
        Annotated[int, BeforeValidator(sizes.in_bytes)] | None,
        Field(description="Memory.", examples=["64 GiB"]),
    ] = None


class OwnersConfig(Section):
    """Bounds for each user who submits, by uid; null: none."""

    queued: Annotated[
        Annotated[int, Field(ge=1)] | None,
        Field(
            description="Runs of one user that may wait; beyond them a submit is refused (75).", examples=[50]
        ),
    ] = None
    running: Annotated[
        Annotated[int, Field(ge=1)] | None,
        Field(
            description="Runs of one user in work at the same time; others pass those that wait.",
            examples=[2],
        ),
    ] = None


def _allowing(pattern: str) -> str:
    if pattern != "*" and not re.fullmatch(r"[^:]+:.+", pattern):
        raise ValueError(
            f"{pattern!r} is no pattern: write module:name, command:PROGRAM, env:NAME, or * for everything"
        )
    return pattern


class EntriesConfig(Section):
    """Which code runs may name."""

    allow: Annotated[
        Annotated[tuple[Annotated[str, AfterValidator(_allowing)], ...], Field(strict=False)] | None,
        Field(
            description="Patterns of what a run may name: entries and calls, `gymnasium:*`, `lab.agents:*`; programs by their first word, "
            "`command:/opt/lab/bin/*`; environment variables, `env:HF_*`. `*` stands for any text; behind the colon of a module it stands for one "
            "name, without dots. Nothing is imported from the folder of the run file then. null: anything.",
            examples=[["gymnasium:*", "lab.agents:*", "command:/opt/lab/bin/*"]],
        ),
    ] = None


class MetricsConfig(Section):
    """Figures for a monitoring system."""

    listen: Annotated[
        Annotated[str, AfterValidator(_metrics_address)] | None,
        Field(
            description="Where `GET /metrics` is answered: `unix:PATH`, or a loopback address with a port, `127.0.0.1:9464`; null: nowhere.",
            examples=["127.0.0.1:9464"],
        ),
    ] = None


class NetworkConfig(Section):
    """Clients on other machines (docs/network.md)."""

    listen: Annotated[
        Annotated[str, AfterValidator(_network_endpoint)] | None,
        Field(
            description="Where clients with a key connect: `tcp://ADDRESS:PORT`; null: nowhere.",
            examples=["tcp://0.0.0.0:5555"],
        ),
    ] = None
    keys: Annotated[
        FilePath | None,
        Field(
            description="Folder of the public keys that come in, and of the daemon's own key; null: `keys` in the state folder.",
            examples=["/etc/run-governor/keys"],
        ),
    ] = None


class Config(Section):
    """Settings of the daemon."""

    state_dir: Annotated[
        FilePath,
        Field(
            description="Folder of the journal and of all runs. Default: `$STATE_DIRECTORY`, else `$XDG_STATE_HOME/run-governor`, else `~/.local/state/run-governor`.",
            examples=["/var/lib/run-governor"],
        ),
    ]
    runtime_dir: Annotated[
        FilePath,
        AfterValidator(_short),
        Field(
            description="Folder of the sockets, for this daemon alone, which empties it: one that no daemon has used must be empty. Default: "
            "`$RUNTIME_DIRECTORY`, else `$XDG_RUNTIME_DIR/run-governor`, else "
            "`/run/run-governor` for root, else `run` below the state folder.",
            examples=["/run/run-governor"],
        ),
    ]
    slots: Annotated[int, Field(ge=1, le=64, description="Runs in work at the same time.")] = 1
    queue_limit: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000,
            description="Runs that may wait for a slot; beyond them a submit is refused (75).",
        ),
    ] = 1000
    machine: Annotated[MachineConfig, Field(description="What runs share.")] = MachineConfig()
    owners: Annotated[OwnersConfig, Field(description="Bounds for each user.")] = OwnersConfig()
    entries: Annotated[EntriesConfig, Field(description="Which code runs may name.")] = EntriesConfig()
    hooks: Annotated[Hooks, Field(description="Who is told of each run, beside its own hooks.")] = Hooks()
    ray: Annotated[RayConfig, Field(description="The Ray cluster.")] = RayConfig()
    network: Annotated[NetworkConfig, Field(description="Clients on other machines.")] = NetworkConfig()
    metrics: Annotated[MetricsConfig, Field(description="Metrics in OpenMetrics format.")] = MetricsConfig()
    socket_group: Annotated[
        Annotated[str, Field(min_length=1)] | None,
        Field(
            description="Group whose members may use the client socket; null: the daemon's user alone.",
            examples=["researchers"],
        ),
    ] = None
    log_format: Annotated[
        Literal["console", "json", "journal"] | None,
        Field(
            description="Format of the log; null: `console` on a terminal, `journal` (systemd's, with fields) where standard error is that, else `json`.",
            examples=["json"],
        ),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Field(description="The least severe events that are logged."),
    ] = "info"
    logs: Annotated[LogsConfig, Field(description="The output of user code.")] = LogsConfig()
    stop_grace: Annotated[
        AnyDuration, Field(description="Time that runs get to stop in order when the daemon stops.")
    ] = 20.0
    disk_reserve: Annotated[
        int,
        BeforeValidator(sizes.in_bytes),
        Field(
            description="With less than this left on the disk of the state folder no run is accepted (75)."
        ),
    ] = 64 << 20
    keep_runs: Annotated[
        Annotated[int, Field(ge=0, le=1_000_000_000)] | None,
        Field(
            description="The newest so many ended runs are kept, besides those that `keep_days` keeps; null: no such bound.",
            examples=[1000],
        ),
    ] = None
    keep_days: Annotated[
        Annotated[float, Field(ge=0, le=100_000)] | None,
        Field(
            description="Runs that ended within so many days are kept, besides those that `keep_runs` keeps; null: no such bound.",
            examples=[30],
        ),
    ] = None

    @property
    def keys(self) -> Path:
        """The folder of the keys of the network."""
        return self.network.keys or self.state_dir / KEYS

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
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(str(file), [f"can't be read: {error.strerror}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(file), [f"is not TOML: {error}"]) from None
