"""`environment.json` in the folder of a run: what it was made with - versions, packages, the code, the machine.

Rules:
1. It is written once, when the run begins; a daemon that continues the run keeps it.
2. No process is started and no code is run for it: packages are the names of their folders, commit and branch are what is in ``.git``,
   GPUs those that the driver of NVIDIA shows in ``/proc``.
3. No value of an environment variable and no content of a file is in it, only the digest of the code.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor.files import write_whole
from governor.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE: Final = "environment.json"
MOST_FILES: Final = 2_000
MOST_BYTES: Final = 20 << 20
MOST_SECONDS: Final = 5.0
"""For looking through a folder that has much else in it, or is on a slow disk."""
CODE: Final = frozenset({".py", ".yaml", ".yml", ".toml", ".json", ".cfg"})
_SMALL: Final = 1 << 20
"""Larger files are data."""
_PACKAGE: Final = re.compile(r"^(.+?)-(\d[^-]*)\.(?:dist|egg)-info$")
_GPUS: Final = Path("/proc/driver/nvidia/gpus")
_COMMIT: Final = re.compile(r"^[0-9a-f]{40,64}$")


def record(run_folder: Path, code_folder: str) -> None:
    """Blocks. Raises OSError."""
    path = run_folder / FILE
    if not path.exists():
        write_whole(path, msgspec.json.format(msgspec.json.encode(of_machine(Path(code_folder))), indent=2))


def of_machine(code_folder: Path) -> dict[str, Any]:
    """What a run would be made with now, with the code in this folder."""
    packages = dict(sorted(_packages()))
    system = os.uname()
    branch, commit = _checked_out(code_folder)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "run_governor": __version__,
        "python": platform.python_version(),
        **{name: packages[name] for name in ("ray", "gymnasium", "numpy", "torch") if name in packages},
        "code": _digest(code_folder),
        "commit": commit,
        "branch": branch,
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


def _digest(folder: Path) -> str:
    """Of the names and contents of the files of code below the folder, in their order."""
    digest, files, size = blake2b(digest_size=16), 0, 0
    is_whole = True
    for path in _code(folder, until=time.monotonic() + MOST_SECONDS):
        if path is None or files >= MOST_FILES or size >= MOST_BYTES:
            is_whole = False
            break
        with suppress(OSError):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
            digest.update(content)
            files, size = files + 1, size + len(content)
    return f"{digest.hexdigest()} ({'' if is_whole else 'the first '}{files} file{'' if files == 1 else 's'})"


def _code(folder: Path, *, until: float) -> Iterator[Path | None]:
    """None, when it took too long: there is more."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if _is_own(Path(place, name)))
        for name in sorted(names):
            if time.monotonic() > until:
                yield None
                return
            path = Path(place, name)
            with suppress(OSError):
                if path.suffix in CODE and path.is_file() and path.stat().st_size < _SMALL:
                    yield path


def _is_own(folder: Path) -> bool:
    """Not hidden, no cache, and no environment of packages."""
    hidden = folder.name.startswith(".") or folder.name in ("__pycache__", "node_modules", "site-packages")
    return not hidden and not (folder / "pyvenv.cfg").exists()


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


def _checked_out(folder: Path) -> tuple[str | None, str | None]:
    """The branch (None for a commit alone) and the commit of the folder's repository, from its files."""
    branch = None
    with suppress(OSError, ValueError, StopIteration):
        root = next(each for each in (folder, *folder.parents) if (each / ".git").exists())
        git = root / ".git"
        if git.is_file():  # a work tree of another place
            git = (root / git.read_text().removeprefix("gitdir:").strip()).resolve()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return None, head if _COMMIT.match(head) else None
        name = head.removeprefix("ref:").strip()
        branch = name.removeprefix("refs/heads/")
        common = git / "commondir"
        places = [git, (git / common.read_text().strip()).resolve()] if common.exists() else [git]
        for place in places:
            if (place / name).is_file():
                return branch, (place / name).read_text().strip()
            for line in (place / "packed-refs").read_text().splitlines():
                if line.endswith(f" {name}"):
                    return branch, line.split()[0]
    return branch, None
