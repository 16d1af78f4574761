"""Finds and kills the processes that an earlier invocation of this instance has left, and reports those that survive.

Every process below a daemon inherits an environment variable that is named after the instance (its state folder) and
has the daemon's own identity as value. A process with that variable and another value is left over, whatever its
session, process group or parent. Left over are also: processes on record, by their identities; all that have a mark on
record (`kill_tree`), whatever their environment; and all descendants of these. This process and its ancestors are
spared: a process that an earlier daemon has left may have started this one.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.processes import cgroups, kill_tree
from governor.processes.identity import ProcessIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable

VARIABLE: Final = "RUN_GOVERNOR_INSTANCE_"

log = logs.get_logger()
_marks_before: dict[str, int] = {}
"""The mark of this process before `mark`, by the instance's variable: it may itself belong to a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A process of an earlier invocation. `handle` is its pidfd."""

    pid: int
    command: str
    handle: int

    def __str__(self) -> str:
        return f"{self.pid} ({self.command})"


def instance_of(state_dir: Path) -> str:
    """16 hexadecimal digits that identify a state folder, whatever its path and mount."""
    folder = state_dir.stat()
    return hashlib.blake2b(f"{folder.st_dev}:{folder.st_ino}".encode(), digest_size=8).hexdigest()


def mark(state_dir: Path) -> None:
    """Marks all that this process starts from now on as of this instance and invocation. Idempotent."""
    variable = VARIABLE + instance_of(state_dir)
    if os.environ.get(variable) == _own_identity():
        return
    os.environ[variable] = _own_identity()
    _marks_before[variable] = kill_tree.own_mark()
    if not kill_tree.is_daemon():
        kill_tree.mark_self(kill_tree.new_mark())
    # Else setproctitle writes long titles over the environment that /proc shows; Ray's agents lost the mark by it.
    os.environ["SPT_NOENV"] = "1"


def warn_if_unmarked() -> None:
    """Logs that the system has refused the mark, once for the daemon and all its children: none of them can have one."""
    if not kill_tree.is_daemon():
        log.warning(
            "process.not_marked",
            reason="RLIMIT_LOCKS cannot be set; orphans in sessions of their own are missed",
        )


def unmark(state_dir: Path) -> None:
    """Undoes `mark` for all that this process starts from now on."""
    variable = VARIABLE + instance_of(state_dir)
    if os.environ.pop(variable, None) is not None:
        kill_tree.mark_self(_marks_before.pop(variable, kill_tree.UNMARKED))


def kill_leftovers(
    instance: str, recorded: Iterable[ProcessIdentity] = (), marks: Iterable[int] = ()
) -> tuple[list[Leftover], list[Leftover]]:
    """Returns those that were killed, and the survivors; the caller closes the handles of the survivors.

    `recorded` are processes on record, `marks` those of `kill_tree`. Blocks, as `kill_tree.kill_tree`, while one survives.
    """
    spared = {os.getpid(), *kill_tree.ancestors(os.getpid())}
    marks = list(marks)
    identities = {each.pid: each for each in recorded if each.pid not in spared}
    roots = {pid: handle for pid, each in identities.items() if (handle := each.open()) is not None}
    commands: dict[int, str] = {}
    handles = kill_tree.stop_and_kill(
        roots,
        lambda pid: pid not in spared and _is_marked(pid, instance),
        marks=marks,
        spared=spared,
        on_stopped=lambda pid: commands.setdefault(pid, _command(pid)),
    )
    alive = kill_tree.finish(handles, marks=marks)
    cgroups.clear()
    found = [Leftover(pid=pid, command=command, handle=handles[pid]) for pid, command in commands.items()]
    return [it for it in found if it.pid not in alive], [it for it in found if it.pid in alive]


def _is_marked(pid: int, instance: str) -> bool:
    begin = f"{VARIABLE}{instance}=".encode()
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # dead, or of another user
        return False
    if begin not in environment:  # of most processes
        return False
    found = next((entry for entry in environment.split(b"\0") if entry.startswith(begin)), None)
    return found is not None and found != begin + _own_identity().encode()


def _own_identity() -> str:
    me = ProcessIdentity.of(os.getpid())
    return f"{me.pid}.{me.ticks}"


def _command(pid: int) -> str:
    try:
        path = Path(f"/proc/{pid}")
        words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return (words or (path / "comm").read_text(errors="replace").strip())[:200]
    except OSError:
        return "?"
