"""The daemon's folder of keys: who may reach it through the network, and how its clients know it.

Rules:
1. ``NAME.toml`` is one client's `public` key and `role`. Whoever may write here decides who comes in: the folder is the
   daemon's user's alone (0700).
2. ``server.secret`` is the daemon's own secret key; a credential of that name comes before it ($CREDENTIALS_DIRECTORY).
   ``server.public`` is for `governor keys`, which may not read the credential.
3. Nothing of a faulty folder counts: a reload keeps the keys that there were.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor import files
from governor.errors import ConfigError, UsageError
from governor.network.roles import ROLES
from transport.errors import BadKey
from transport.network.curve import KeyPair, Member, checked

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVER_KEY: Final = "server.secret"
PUBLIC: Final = "server.public"
NAME: Final = r"[a-z][a-z0-9_.-]{0,62}"
"""No uid of a user looks like it."""


def require_name(name: str) -> str:
    """Raises UsageError."""
    if not re.fullmatch(NAME, name) or name in {"server", "others"}:
        raise UsageError(
            f"{name!r} is no name for a key: a lower-case letter, then at most 62 letters, digits, dots, dashes and underscores; "
            "not 'server' or 'others'"
        )
    return name


class KeyFolder:
    """Its methods block. They raise ConfigError, with every fault, for what cannot be read or makes no sense."""

    def __init__(self, path: Path, environ: Mapping[str, str] = os.environ) -> None:
        self.path = path
        credentials = environ.get("CREDENTIALS_DIRECTORY")
        self._credential = Path(credentials) / SERVER_KEY if credentials else None

    def server(self) -> KeyPair:
        """The daemon's own pair; a new one the first time."""
        for place in filter(None, (self._credential, self.path / SERVER_KEY)):
            try:
                pair = KeyPair.of(_secret_text(place, is_private=place != self._credential))
            except FileNotFoundError:
                continue
            except BadKey as error:
                raise ConfigError(str(place), [str(error)]) from error
            self._write(PUBLIC, pair.public + "\n", mode=0o644)
            return pair
        pair = KeyPair.new()
        self._write(SERVER_KEY, pair.secret + "\n")
        self._write(PUBLIC, pair.public + "\n", mode=0o644)
        return pair

    def server_public(self) -> str:
        """The daemon's public key; a new pair if there is none."""
        try:
            return checked((self.path / PUBLIC).read_text().strip())
        except (OSError, BadKey):
            return self.server().public

    def members(self) -> tuple[Member, ...]:
        """Who comes in, by name. Without a folder nobody. Raises ConfigError."""
        try:
            names = sorted(os.listdir(self.path))  # noqa: PTH208  # names are what is asked for
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise ConfigError(str(self.path), [f"can't be read: {error.strerror}"]) from error
        found, faults = [], []
        for file in (self.path / name for name in names if name.endswith(".toml")):
            try:
                found.append(_member(file))
            except OSError as error:
                faults.append(f"{file} can't be read: {error.strerror}")
            except UnicodeDecodeError:
                faults.append(f"{file} is no text in UTF-8")
            except (ValueError, BadKey, UsageError) as error:
                faults.append(f"{file}: {error}")
        for public in {member.public for member in found}:
            same = [member.name for member in found if member.public == public]
            if len(same) > 1:
                faults.append(f"{' and '.join(same)} have the same key")
        if faults:
            raise ConfigError(str(self.path), faults)
        return tuple(found)

    def add(self, name: str, *, role: str, public: str) -> None:
        """Raises UsageError if the name, or the key, is in use."""
        known = self.members()
        for member in known:
            if name == member.name or public == member.public:
                raise UsageError(
                    f"{member.name!r} is in {self.path} already: `governor keys remove {member.name}` comes first"
                )
        self._write(f"{name}.toml", f'role = "{role}"\npublic = "{public}"\n')

    def remove(self, name: str) -> None:
        """Raises UsageError where there is no such key, ConfigError where it can't be removed."""
        path = self.path / f"{require_name(name)}.toml"
        try:
            path.unlink()
        except FileNotFoundError:
            raise UsageError(f"there is no key {name!r} in {self.path}: `governor keys list`") from None
        except OSError as error:
            raise ConfigError(str(path), [f"can't be removed: {error.strerror}"]) from error

    def _write(self, name: str, text: str, *, mode: int = 0o600) -> None:
        path = self.path / name
        try:
            if path.exists() and path.read_text() == text:
                return
            for folder in (self.path.parent, self.path):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.write_whole(path, text.encode(), sync=True, mode=mode)
        except OSError as error:
            raise ConfigError(str(path), [f"can't be written: {error.strerror}"]) from error


def _secret_text(place: Path, *, is_private: bool) -> str:
    """`is_private`: its mode must say so; that of a credential is systemd's affair. Raises FileNotFoundError, ConfigError."""
    try:
        status = place.stat()
        text = place.read_text().strip()
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(place), [f"can't be read: {error}"]) from error
    if is_private and stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(str(place), ["others can read this secret key: `chmod 600` it, or make a new one"])
    return text


def _member(file: Path) -> Member:
    """Raises ValueError, OSError, BadKey, UsageError."""
    found: dict[str, Any] = tomllib.loads(file.read_text())
    if unknown := found.keys() - {"role", "public"}:
        raise ValueError(f"unknown key {min(unknown)!r}; it has role and public")
    role, public = found.get("role"), found.get("public")
    if role not in ROLES:
        raise ValueError(f"role must be one of {', '.join(ROLES)}, not {role!r}")
    if not isinstance(public, str):
        raise ValueError(f"public must be a key, not {public!r}")  # noqa: TRY004  # one of many faults of a file
    return Member(name=require_name(file.stem), role=role, public=checked(public))
