"""A client's contexts: files that say where a daemon on another machine is, and with which keys it is reached.

``$XDG_CONFIG_HOME/run-governor/contexts/NAME.toml``, or any file. Nobody else may read it: it has the client's secret key.
"""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor import files
from governor.errors import UsageError
from governor.locations import config_dir
from transport import endpoints
from transport.errors import BadEndpoint, BadKey
from transport.network.curve import ClientKeys, KeyPair, checked

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "GOVERNOR_CONTEXT"
KEYS: Final = ("endpoint", "server", "secret")


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """`endpoint` is that of a daemon that listens with keys."""

    endpoint: str
    keys: ClientKeys

    def write(self, path: Path) -> None:
        """Raises OSError."""
        lines = {"endpoint": self.endpoint, "server": self.keys.server, "secret": self.keys.pair.secret}
        text = "".join(f'{key} = "{value}"\n' for key, value in lines.items())
        files.write_whole(path, text.encode(), sync=True, mode=0o600)


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    return config_dir(environ) / "contexts"


def names(environ: Mapping[str, str] = os.environ) -> list[str]:
    return sorted(path.stem for path in folder(environ).glob("*.toml"))


def load(named: str, environ: Mapping[str, str] = os.environ) -> Context:
    """The context of a name, or of a path. Raises UsageError."""
    is_path = "/" in named or named.endswith(".toml")
    path = Path(named).expanduser() if is_path else folder(environ) / f"{named}.toml"
    try:
        status, text = path.stat(), path.read_text()
    except FileNotFoundError:
        known = ", ".join(names(environ)) or "none"
        raise UsageError(f"there is no context {named!r}: no file {path}; known ones: {known}") from None
    except OSError as error:
        raise UsageError(f"the context {path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError(f"the context {path} is no text in UTF-8") from None
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise UsageError(f"the context {path} has a secret key, and others can read it: `chmod 600 {path}`")
    try:
        return _context(tomllib.loads(text))
    except (ValueError, BadKey, BadEndpoint) as error:
        raise UsageError(f"the context {path}: {error}") from error


def _context(found: dict[str, Any]) -> Context:
    for key in KEYS:
        if not isinstance(found.get(key), str):
            raise ValueError(f"{key} must be a text, not {found.get(key)!r}")  # noqa: TRY004  # a fault of a file
    if unknown := found.keys() - {*KEYS}:
        raise ValueError(f"unknown key {min(unknown)!r}; it has {', '.join(KEYS)}")
    endpoints.parse_connect(found["endpoint"])
    keys = ClientKeys(server=checked(found["server"]), pair=KeyPair.of(found["secret"]))
    return Context(endpoint=found["endpoint"], keys=keys)
