"""`environment.json` in the folder of a run: what it was made with - versions, packages, the code, the machine.

Rules:
1. It is written once, when the run begins; a daemon that continues the run keeps it.
2. No code is run for it, and no process but git: packages are the names of their folders, GPUs those that the driver of NVIDIA shows
   in ``/proc``.
3. No value of an environment variable and no content of a file is in it, only the digest of the code.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor.files import write_whole
from governor.runs.record import code, work_tree
from governor.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from governor.runs.record.code import Submission

FILE: Final = "environment.json"
_PACKAGE: Final = re.compile(r"^(.+?)-(\d[^-]*)\.(?:dist|egg)-info$")
_GPUS: Final = Path("/proc/driver/nvidia/gpus")


def record(run_folder: Path, code_folder: Path, submitted: Submission) -> dict[str, Any] | None:
    """Writes the file if there is none; returns what of the code has changed since the run was submitted, or since it began
    (`code.changed`). Blocks. Raises OSError.
    """
    path = run_folder / FILE
    changed = partial(code.changed, code_folder)
    if path.exists():
        known, began = of_run(run_folder).get("code", ""), path.stat().st_mtime
        return changed(known=known, now=code.digest(code_folder), since=began, when="it began")
    made = of_machine(code_folder, copied=submitted.copied)
    write_whole(path, msgspec.json.format(msgspec.json.encode(made), indent=2))
    return changed(known=submitted.digest, now=made["code"], since=submitted.at, when="it was submitted")


def of_run(run_folder: Path) -> dict[str, Any]:
    """What a run was made with, as far as that is on record. Blocks."""
    try:
        found = msgspec.json.decode((run_folder / FILE).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return {}
    return found if isinstance(found, dict) else {}


def of_machine(code_folder: Path, *, copied: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a run would be made with now, with the code in this folder. `copied`: as of `Submission`, in place of its work tree."""
    packages = dict(sorted(_packages()))
    system = os.uname()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "run_governor": __version__,
        "python": platform.python_version(),
        **{name: packages[name] for name in ("ray", "gymnasium", "numpy", "torch") if name in packages},
        "code": code.digest(code_folder),
        **(copied or work_tree.describe(code_folder)),
        "host": system.nodename,
        "system": f"{system.sysname} {system.release} {system.machine}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / (1 << 30), 1),
        "gpus": _gpus(),
        "packages": packages,
    }


def _packages() -> Iterator[tuple[str, str]]:
    """The first one on the import path counts, as for an import."""
    seen = set()
    for folder in sys.path:
        with suppress(OSError):
            for entry in os.listdir(folder or "."):  # noqa: PTH208  # names alone
                found = _PACKAGE.match(entry)
                if found is not None and (name := found[1].replace("_", "-").lower()) not in seen:
                    seen.add(name)
                    yield name, found[2]


def _gpus() -> list[str]:
    """Their models, in the order of their places on the bus."""
    found = []
    with suppress(OSError):
        for each in sorted(_GPUS.iterdir()):
            for line in (each / "information").read_text().splitlines():
                key, _, value = line.partition(":")
                if key == "Model":
                    found.append(value.strip())
    return found
