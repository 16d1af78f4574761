"""A delegated cgroup, as of systemd's `Delegate=yes`. Tests are skipped if this process may not create one."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

import pytest

from governor.processes import cgroups


@contextlib.contextmanager
def made(*, delegated=True):
    """The folder of a new cgroup. All processes in it are killed at the end of the context."""
    here = cgroups.of_process()
    if here == cgroups.NOWHERE:
        pytest.skip("no cgroup2 is mounted")
    folder = here / f"test-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        if not (folder / "cgroup.kill").exists():
            pytest.skip("Linux is older than 5.14: no cgroup.kill")
        if delegated:
            os.setxattr(folder, "user.delegate", b"1")
        yield folder
    finally:
        cgroups.kill(folder)
        assert cgroups.remove(folder, seconds=10)


@contextlib.contextmanager
def entered(folder: Path):
    """This process is a member of the cgroup in this context."""
    before = cgroups.of_process()
    enter(folder)
    try:
        yield
    finally:
        enter(before)


def enter(folder: Path) -> None:
    (folder / "cgroup.procs").write_text("0")


def groups(folder: Path) -> list[str]:
    """Cgroups below `folder`."""
    made = (
        Path(above, name) for above, names, _ in os.walk(folder) for name in names
    )  # some may disappear meanwhile
    return sorted(str(each.relative_to(folder)) for each in made)


def emptied(folder: Path, *, seconds: float) -> list[str]:
    """Waits at most `seconds` until no cgroup is below `folder`. Returns those that are left."""
    end = time.monotonic() + seconds
    while left := groups(folder):
        if time.monotonic() > end:
            break
        time.sleep(0.01)  # no event reports the removal of a cgroup
    return left
