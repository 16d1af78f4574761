"""The steps of `governor install-service` and `uninstall-service`: files, a link, and commands of systemd. Each can be done again.

Rules:
1. The configuration, the runs and the system's user are never removed, and a configuration that is there is kept.
2. A file that is replaced and was another one stays beside it, as `NAME.before`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor.errors import NotPermitted, TryAgain, UsageError
from governor.locations import NAME, config_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

UNIT: Final = f"{NAME}.service"
_COMMAND_SECONDS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the service has what. `sysusers` is None for a user's own service."""

    unit: Path
    config: Path
    link: Path
    sysusers: Path | None

    @classmethod
    def of_system(cls) -> Places:
        return cls(
            unit=Path("/etc/systemd/system") / UNIT,
            config=Path("/etc") / NAME / "governor.toml",
            link=Path("/usr/local/bin/governor"),
            sysusers=Path("/etc/sysusers.d") / f"{NAME}.conf",
        )

    @classmethod
    def of_user(cls, environ: Mapping[str, str] = os.environ) -> Places:
        home = Path(environ.get("HOME") or "~").expanduser()
        settings = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        return cls(
            unit=settings / "systemd" / "user" / UNIT,
            config=config_dir(environ) / "governor.toml",
            link=home / ".local" / "bin" / "governor",
            sysusers=None,
        )

    @property
    def manager(self) -> list[str]:
        return ["systemctl", "--user"] if self.sysusers is None else ["systemctl"]


class Installation:
    """Does the steps, or with `dry_run` only tells them; `told` has a line for each. `booted` is there where systemd is at work."""

    def __init__(self, places: Places, *, dry_run: bool, booted: Path = Path("/run/systemd/system")) -> None:
        self.places = places
        self._booted = booted
        self.told: list[str] = []
        self._dry_run = dry_run
        self._bin = Path(sys.prefix) / "bin"

    def install(self) -> None:
        """Raises UsageError, NotPermitted, TryAgain, OSError."""
        places = self.places
        self._require_systemd()
        if places.sysusers is not None:
            _require_readable(Path(sys.prefix))
            self._write(places.sysusers, _text("run-governor.sysusers"))
            self._run("systemd-sysusers", str(places.sysusers))
        self._write(places.config, _text("governor.toml"), keep=True)
        name = UNIT if places.sysusers is not None else "run-governor.user.service"
        unit = _text(name).replace("{bin}", str(self._bin)).replace("{config}", str(places.config))
        self._write(places.unit, unit)
        self._link()
        user = [] if places.sysusers is not None else ["--user"]
        self._run("systemd-analyze", *user, "verify", "--man=no", str(places.unit))
        self._run(*places.manager, "daemon-reload")

    def uninstall(self) -> None:
        """Raises UsageError, NotPermitted, TryAgain, OSError."""
        places = self.places
        self._require_systemd()
        if places.unit.exists():
            self._run(*places.manager, "disable", "--now", UNIT)
        for path in (places.unit, places.sysusers):
            if path is not None and path.exists():
                self._do(f"remove {path}", path.unlink)
        if self._is_our_link():
            self._do(f"remove {places.link}", places.link.unlink)
        self._run(*places.manager, "daemon-reload")

    def _require_systemd(self) -> None:
        if shutil.which("systemctl") is None:
            raise UsageError("systemctl is not on PATH: a service needs systemd; `governor serve` does not")
        if self._dry_run:
            return
        if not self._booted.is_dir():
            raise TryAgain(f"systemd is not at work here (no {self._booted}); --dry-run shows the steps")
        if self.places.sysusers is not None and os.geteuid() != 0:
            raise NotPermitted(
                "a service of the system is installed by root; --user installs one of your own"
            )

    def _do(self, what: str, step: Callable[[], None]) -> None:
        self.told.append(what)
        if not self._dry_run:
            step()

    def _write(self, path: Path, text: str, *, keep: bool = False) -> None:
        there = path.read_text() if path.exists() else None
        if there == text or (there is not None and keep):
            self.told.append(f"keep {path}")
            return

        def write() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if there is not None:
                path.replace(path.with_name(f"{path.name}.before"))
            path.write_text(text)
            path.chmod(0o644)

        self._do(f"{'write' if there is None else 'replace'} {path}", write)

    def _is_our_link(self) -> bool:
        link = self.places.link
        return link.is_symlink() and link.readlink() == self._bin / "governor"

    def _link(self) -> None:
        link, target = self.places.link, self._bin / "governor"
        if self._is_our_link() or link == target:
            self.told.append(f"keep {link}")
            return
        if link.exists() or link.is_symlink():
            self.told.append(f"keep {link}: it is another one; {target} is that of the service")
            return

        def make() -> None:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)

        self._do(f"link {link} to {target}", make)

    def _run(self, *command: str) -> None:
        """Raises TryAgain with what it has said."""

        def run() -> None:
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise TryAgain(f"`{shlex.join(command)}` failed: {error}") from error
            if done.returncode:
                said = (done.stderr or done.stdout).strip()
                raise TryAgain(f"`{shlex.join(command)}` failed ({done.returncode}): {said}")

        self._do(f"run {shlex.join(command)}", run)


def _text(name: str) -> str:
    return (files("governor.cli.service") / "files" / name).read_text()


def _require_readable(prefix: Path) -> None:
    """Raises UsageError where the service's own user could not start the program there."""
    user, readable = f"the service's user, {NAME},", f"chmod --recursive o+rX {prefix}"
    ways = {*prefix.parents, *Path(sys.executable).resolve().parents} - {prefix, prefix / "bin"}
    for path in sorted(ways):
        if _lacks(path, stat.S_IXOTH):
            where = f"install governor elsewhere, as into /opt/{NAME}, with a Python that all may start"
            raise UsageError(f"{user} can't enter {path}: {where}")
    if not (prefix / "pyvenv.cfg").exists():  # the system's own: it has files that are root's alone
        return
    library = (prefix / "lib").rglob("*")
    for path in (prefix, prefix / "pyvenv.cfg", prefix / "bin", prefix / "bin" / "governor", *library):
        if _lacks(path, stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)):
            raise UsageError(f"{user} can't read {path}: {readable}")


def _lacks(path: Path, mode: int) -> bool:
    return path.exists() and path.stat().st_mode & mode != mode
