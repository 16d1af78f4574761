"""The environment variables that a run hands to all of its processes: `env_file`, `env`, and what the daemon adds for its slot.

Rules:
1. The later one of these counts. A task or service has `env` of its own, which counts most.
2. The file is read when the first conductor of an invocation starts, and once: all of them see the same. Its values are in no record.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor.errors import ProcessError
from governor.run_file.plain_data import mapping
from governor.units import variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from governor.run_file.load import Examined
    from governor.runs.assignment import Assignment
    from governor.units.sections import Path as Place

MAX_BYTES: Final = 1 << 20


class RunVariables:
    """Those of one run in work. `assignment` may change meanwhile, but not its variables."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._reading = asyncio.Lock()
        self._found: dict[str, str] | None = None

    async def get(self) -> dict[str, str]:
        """Raises ProcessError when the file can't be read now; it is tried again at the next start of a conductor."""
        async with self._reading:
            if self._found is None:
                made = self._assignment
                read = await asyncio.to_thread(of_run, made.run.env, made.run.env_file, made.folder)
                self._found = {**read, **made.variables}
            return self._found


def of_run(env: Mapping[str, str], env_file: str | None, folder: str) -> dict[str, str]:
    """The variables of a run file in this folder. Blocks. Raises ProcessError."""
    if env_file is None:
        return dict(env)
    found, faults = _read(Path(folder) / env_file)
    if faults:
        raise ProcessError(f"env_file {env_file}: {faults[0]}")
    return {**found, **env}


def given(examined: Examined) -> dict[str, str]:
    """Those of a run file that may have faults: what is sound. Blocks."""
    run = examined.valid
    if run is None:
        return {}
    found = {} if run.env_file is None else _read(examined.folder / run.env_file)[0]
    return {**found, **run.env}


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
