"""The environment variables that a run hands to all of its processes: `env_file`, `env`, `secrets`, and what the daemon adds for its slot.

Rules:
1. The later one of these counts. A task or service has `env` of its own, which counts most.
2. Files are read when the first conductor of an invocation starts, and once: all processes see the same.
3. Values of the file and of secrets are in no record. Those of secrets are masked in what the run prints and reports (`units.mask`).
4. A secret is a file that only the daemon's user can read: a credential of systemd, else one in a folder of its own.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from governor import locations
from governor.errors import ProcessError, UsageError
from governor.failures import SECRETS
from governor.run_file.plain_data import mapping
from governor.units import variables
from governor.units.fields import PLAIN_NAME
from governor.units.mask import LEAST, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from governor.run_file.load import Examined
    from governor.run_file.model import Run
    from governor.runs.assignment import Assignment
    from governor.units.sections import Path as Place

MAX_BYTES: Final = 1 << 20


class RunVariables:
    """Those of one run in work. `assignment` may change meanwhile, but not its variables."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._reading = asyncio.Lock()
        self._found: dict[str, str] | None = None
        self.mask = Mask()
        """Of the secrets, once they were read."""

    async def get(self) -> dict[str, str]:
        """Raises ProcessError when the file can't be read now; it is tried again at the next start of a conductor."""
        async with self._reading:
            if self._found is None:
                made = self._assignment
                read = await asyncio.to_thread(of_run, made.run, made.folder)
                self.mask = Mask({name: read[name] for name in made.run.secrets})
                names = {SECRETS: ",".join(made.run.secrets)} if made.run.secrets else {}
                self._found = {**read, **made.variables, **names}
            return self._found


def of_run(run: Run, folder: str) -> dict[str, str]:
    """The variables of a run file in this folder. Blocks. Raises ProcessError."""
    found: dict[str, str] = {}
    if run.env_file is not None:
        found, faults = _read(Path(folder) / run.env_file)
        if faults:
            raise ProcessError(f"env_file {run.env_file}: {faults[0]}")
    return {**found, **run.env, **{variable: secret(name) for variable, name in run.secrets.items()}}


def given(examined: Examined) -> dict[str, str]:
    """Those of a run file that may have faults: what is sound. A secret that only the daemon has is empty. Blocks."""
    run = examined.valid
    if run is None:
        return {}
    found = {} if run.env_file is None else _read(examined.folder / run.env_file)[0]
    return {**found, **run.env, **dict.fromkeys(run.secrets, ""), **_readable(run.secrets)}


def require_secrets(runs: Iterable[Run]) -> None:
    """Blocks. Raises UsageError for a secret that can't be read now."""
    try:
        for name in sorted({name for run in runs for name in run.secrets.values()}):
            secret(name)
    except ProcessError as error:
        raise UsageError(str(error)) from error


def mask_of(run_folder: Path) -> Mask:
    """Of the secrets of the run whose files are there, as far as they can be read. Blocks."""
    try:
        found = mapping(msgspec.json.decode((run_folder / "run.json").read_bytes())).get("secrets")
    except (OSError, msgspec.MsgspecError):
        return Mask()
    return Mask(_readable(mapping(found)))


def _readable(secrets: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for variable, name in secrets.items():
        if isinstance(name, str) and re.fullmatch(PLAIN_NAME, name):  # user code may have written the file
            with suppress(ProcessError):
                found[variable] = secret(name)
    return found


def secret(name: str) -> str:
    """The value of a secret, without a line's end behind it. Blocks. Raises ProcessError, without the value."""
    places = [folder / name for folder in locations.secret_folders()]
    for place in places:
        if (found := _value_of(name, place, is_private=place is places[-1])) is not None:
            return found
    raise ProcessError(f"there is no secret {name!r}: no file {' or '.join(map(str, places))}")


def _value_of(name: str, place: Path, *, is_private: bool) -> str | None:
    """None where there is no such file. `is_private`: nobody else may read it."""
    try:
        with open(os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123  # no pipe holds it up
            status = os.fstat(file.fileno())
            content = file.read(MAX_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProcessError(f"secret {name!r}: {place} can't be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ProcessError(f"secret {name!r}: {place} is no file")
    if is_private and (status.st_mode & 0o077 or status.st_uid not in (os.geteuid(), 0)):
        raise ProcessError(
            f"secret {name!r}: {place} can be read by others, or belongs to someone else: `chmod 600` it, as the daemon's user"
        )
    try:
        value = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        value = "\0"
    if "\0" in value or len(content) > MAX_BYTES:
        raise ProcessError(f"secret {name!r}: {place} is no text of {MAX_BYTES >> 20} MiB at most")
    if len(value) < LEAST:
        raise ProcessError(
            f"secret {name!r}: {place} has fewer than {LEAST} characters, and could not be told from other texts"
        )
    return value


def faults(data: object, folder: Path) -> Iterator[tuple[Place, str]]:
    """All faults of the `env_file` of a run file, given as plain data, in this folder. Blocks."""
    env_file = mapping(data).get("env_file")
    if isinstance(env_file, str) and env_file:
        for fault in _read(folder / env_file)[1]:
            yield ("env_file",), fault


def _read(file: Path) -> tuple[dict[str, str], list[str]]:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            return {}, [f"{file} is larger than {MAX_BYTES >> 20} MiB"]
        return variables.parse(content.decode())
    except UnicodeDecodeError:
        return {}, [f"{file} is not UTF-8 text"]
    except (OSError, ValueError) as error:
        return {}, [f"{file} can't be read: {getattr(error, 'strerror', None) or error}"]
