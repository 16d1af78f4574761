"""Files that a run has before it is on record: complete in a staging folder first, under the run's name once it is in the journal.

`finish_interrupted` completes this after a crash in between.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from governor.files import sync_to_disk

if TYPE_CHECKING:
    from pathlib import Path

    from governor.journal.journal import Journal


def staging_of(folder: Path) -> Path:
    """Where the files of a new run are staged."""
    return folder.with_name(f".{folder.name}.part")


def begin(folder: Path) -> Path:
    """Makes the staging folder of a run. Raises OSError."""
    staging = staging_of(folder)
    staging.mkdir(mode=0o700)
    return staging


def publish(folder: Path) -> None:
    """Gives the staged files their final name. Raises OSError."""
    staging_of(folder).rename(folder)
    sync_to_disk(folder.parent)


def discard(folder: Path) -> None:
    """Removes the staged files of a run that was not recorded. Blocks."""
    shutil.rmtree(staging_of(folder), ignore_errors=True)


def finish_interrupted(journal: Journal, runs_folder: Path) -> None:
    """After a crash in between: staged files of recorded runs get their name, others are removed. Blocks."""
    for staging in runs_folder.glob(".*.part"):
        folder = staging.with_name(staging.name[1:].removesuffix(".part"))
        row = journal.line(folder.name)
        if row is None or row.pruned_at is not None:  # it was not accepted
            discard(folder)
        else:
            publish(folder)
