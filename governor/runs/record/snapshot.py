"""The copy of a run's code, of a run file with `code: snapshot`: ``code/`` in the run's folder, made when it is submitted.

Rules:
1. All files below the run file's folder are copied, also data and hidden files; hidden folders, caches, environments of packages and
   state folders of daemons are not (`code.is_own`). A link to a file is copied as the file; one to a folder stays a link, to the same place.
2. Files of the copy can't be written, since the runs of a group, and one that resumes another, share them as hard links.
3. More than `MOST_BYTES` or `MOST_FILES` is refused: data belong elsewhere.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor.errors import UsageError
from governor.files import sync_to_disk
from governor.runs.record.code import is_own

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = "code"
MOST_BYTES: Final = 100 << 20
MOST_FILES: Final = 10_000


def take(folder: Path, target: Path) -> None:
    """Copies what is below the folder to `target`, which it makes. Blocks. Raises UsageError where it is too much, OSError."""
    files = [*_files(folder)]
    _require_bounds(folder, files)
    target.mkdir(mode=0o700)
    for path, _ in files:
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


def _require_bounds(folder: Path, files: list[tuple[Path, int]]) -> None:
    size = sum(size for _, size in files)
    if size <= MOST_BYTES and len(files) <= MOST_FILES:
        return
    if len(files) > MOST_FILES:
        much = f"more than {MOST_FILES:,} files"
    else:
        largest, bytes_ = max(files, key=lambda file: file[1])
        much = (
            f"{size >> 20} MiB, of which {largest.relative_to(folder)} has {bytes_ >> 20} MiB; "
            f"{MOST_BYTES >> 20} MiB are allowed"
        )
    raise UsageError(
        f"code: snapshot copies the folder {folder}, and that has {much}. Keep data in another folder, or submit the run without a copy"
    )


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """With their sizes; one more than is allowed at most. Links to folders are among them. Raises OSError."""
    number = 0
    for place, folders, names in os.walk(folder, onerror=_raise):
        own = [Path(place, name) for name in folders if is_own(Path(place, name))]
        linked = [path for path in own if path.is_symlink()]
        folders[:] = [path.name for path in own if not path.is_symlink()]
        for path in (*linked, *(Path(place, name) for name in names)):
            if path.is_file() or path.is_dir():  # no link to nothing, no pipe
                number += 1
                yield path, 0 if path.is_dir() else path.stat().st_size
            if number > MOST_FILES:
                return


def _raise(error: OSError) -> None:
    raise error
