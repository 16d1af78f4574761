"""The work tree of git that the code of a run is in: its branch, its commit, and whether it is clean.

Rules:
1. Branch and commit are read from the files in ``.git``. Whether files differ from the commit is asked of ``git status``, where git is
   installed and trusts the folder; it has some seconds.
2. Files that git does not know do not count: the digest of the code has them.
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

MOST_SECONDS: Final = 5.0
NAMED: Final = 20
"""Files with changes that are named."""
_COMMIT: Final = re.compile(r"^[0-9a-f]{40,64}$")
_STATUS: Final = (
    *("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "status"),
    *("--porcelain", "-z", "--no-renames", "--untracked-files=no"),
)


def describe(folder: Path) -> dict[str, Any]:
    """``commit``, ``branch`` (None for a commit alone), ``clean`` and ``uncommitted``, the first files that differ; None where that is
    not known. Blocks.
    """
    branch, commit = _checked_out(folder)
    changed = None if commit is None else _uncommitted(folder)
    return {
        "commit": commit,
        "branch": branch,
        "clean": None if changed is None else not changed,
        "uncommitted": (changed or [])[:NAMED],
    }


def _uncommitted(folder: Path) -> list[str] | None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        found = subprocess.run(
            _STATUS,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=MOST_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):  # no git, a folder of someone else, a slow disk
        return None
    lines = found.stdout.decode("utf-8", "backslashreplace").split("\0")
    return sorted(line[3:] for line in lines if line)


def _checked_out(folder: Path) -> tuple[str | None, str | None]:
    """Branch and commit."""
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
