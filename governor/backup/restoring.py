"""The way back: a backup becomes a state folder, from which a daemon goes on.

The next start finds `MARK` there. It does not look for the processes on record, which are not those of this folder: where it lies on the
same machine as the one that was copied, they may be at work.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec

from governor.backup import archive
from governor.errors import UsageError
from governor.files import put_in_place, sync_to_disk, write_whole
from governor.journal import schema
from governor.journal.disk_reserve import no_room
from governor.locations import JOURNAL, KEYS, RUNS

if TYPE_CHECKING:
    from governor.backup.archive import About

MARK: Final = "governor.restored"
_PREFIX: Final = ".restored-"


def restore(file: IO[bytes], state_dir: Path, *, name: str) -> About:
    """Into a folder without a journal, which is locked. All or nothing: the journal comes last. Blocks.

    Raises UsageError for what is no whole backup, or for a folder that is used; JournalError, NoRoom.
    """
    for used in (JOURNAL, RUNS, KEYS):
        if (state_dir / used).exists():
            raise UsageError(
                f"{state_dir / used} is there already: name a new folder with --state-dir, or move it away"
            )
    for left in state_dir.glob(f"{_PREFIX}*"):  # of a restore that was killed: the folder is locked
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
    unpacked = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=state_dir))
    try:
        about = archive.extract(file, unpacked, name=name)
        schema.check(unpacked / JOURNAL)
        os.sync()  # all files are on disk before the journal that tells of them
        write_whole(state_dir / MARK, msgspec.json.encode(about), mode=0o600)
        for part in (KEYS, RUNS):
            if (unpacked / part).exists():
                (unpacked / part).rename(state_dir / part)
        put_in_place(unpacked / JOURNAL, state_dir / JOURNAL)
    except OSError as error:
        raise no_room(state_dir, error) or error from error
    else:
        return about
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


def restored_from(state_dir: Path) -> str:
    """Of a folder that no daemon has begun to use: what it is from, in words; else empty."""
    try:
        about = msgspec.json.decode((state_dir / MARK).read_bytes(), type=archive.About)
    except (OSError, msgspec.MsgspecError):
        return ""
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(about.made_at))
    return f"restored from the backup of {made}, of {about.state_dir} on {about.machine}"


def forget(state_dir: Path) -> None:
    """A daemon has begun to use it."""
    (state_dir / MARK).unlink(missing_ok=True)
    sync_to_disk(state_dir)
