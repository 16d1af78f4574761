"""The copy of a run's code, of a run file with `code: snapshot`: ``code/`` in the run's folder, made when it is submitted.

Rules:
1. What is copied, and how much it may be, is that of a package (`network.packages`). A link to a file is copied as the file; one to a folder stays a link, to the same place.
2. Files of the copy can't be written, since the runs of a group, and one that resumes another, share them as hard links.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from governor.files import sync_to_disk
from governor.locations import CODE
from governor.network.packages import own_files

FOLDER: Final = CODE


def take(folder: Path, target: Path) -> None:
    """Copies what is below the folder to `target`, which it makes. Blocks. Raises UsageError where it is too much, OSError."""
    files = own_files(
        folder,
        what="code: snapshot copies",
        instead="Keep data in another folder, or submit the run without a copy",
    )
    target.mkdir(mode=0o700)
    for path in files:
        copy = target / path.relative_to(folder)
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_dir():
            copy.symlink_to(path.resolve())
            continue
        shutil.copy2(path, copy)
        copy.chmod(copy.stat().st_mode & 0o555)
        sync_to_disk(copy)
    _sync_folders(target)


def share(copy: Path, target: Path) -> None:
    """Makes `target` the same copy. Blocks. Raises OSError."""
    shutil.copytree(copy, target, symlinks=True, copy_function=_link)
    _sync_folders(target)


def _sync_folders(target: Path) -> None:
    for place, _, _ in os.walk(target):
        sync_to_disk(Path(place))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without links
        shutil.copy2(source, target)
