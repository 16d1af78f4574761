"""What an earlier invocation of this house has left alive: found, killed, seen dead; and named where it would not die.

Every process below a daemon has inherited a variable in its environment, named after the house (its state folder) and
with the daemon's own birth as value. So whoever has the house's variable with another value is left over, in whatever
session or process group it is, and whoever its parent has become. Beside them are judged: processes on record, by
their births; all that bear the marks on record (`kill_tree`), with whatever environment; and all descendants of these.
Spared are this process and its ancestors: a daemon may be started by what an earlier one has left.
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

VARIABLE: Final = "RUN_GOVERNOR_HOUSE_"

log = logs.get_logger()
_before: dict[str, int] = {}
"""The mark of this process before it was a house's, by that one's variable: it may be of a run itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOver:
    """A process of an earlier invocation. `handle` is its pidfd."""

    pid: int
    command: str
    handle: int

    def __str__(self) -> str:
        return f"{self.pid} ({self.command})"


def house_of(state_dir: Path) -> str:
    """16 hexadecimal digits for a state folder, under whatever path and in whatever mount it is seen."""
    folder = state_dir.stat()
    return hashlib.blake2b(f"{folder.st_dev}:{folder.st_ino}".encode(), digest_size=8).hexdigest()


def mark(state_dir: Path) -> None:
    """From now on what this process starts is known as this house's, and of this invocation. Again: nothing."""
    variable = VARIABLE + house_of(state_dir)
    if os.environ.get(variable) == _own():
        return
    os.environ[variable] = _own()
    _before[variable] = kill_tree.own_mark()
    if not kill_tree.is_daemon():
        kill_tree.mark_self(kill_tree.new_mark())
    # Else setproctitle writes long titles over the environment that /proc shows; Ray's agents lost the mark by it.
    os.environ["SPT_NOENV"] = "1"


def tell_unmarked() -> None:
    """Says in the log where the system has refused the mark. No child can have one then: it is said once, of all."""
    if not kill_tree.is_daemon():
        log.warning(
            "process.not_marked",
            reason="RLIMIT_LOCKS cannot be set; orphans in sessions of their own are missed",
        )


def unmark(state_dir: Path) -> None:
    """What this process starts from now on is its own affair."""
    variable = VARIABLE + house_of(state_dir)
    if os.environ.pop(variable, None) is not None:
        kill_tree.mark_self(_before.pop(variable, kill_tree.UNMARKED))


def kill_left_over(
    house: str, recorded: Iterable[ProcessIdentity] = (), marks: Iterable[int] = ()
) -> tuple[list[LeftOver], list[LeftOver]]:
    """Those that were killed and seen dead, and those that live on, whose handles are the caller's to close.

    `recorded` are processes on record, `marks` those of `kill_tree`. Blocks, as `kill_tree.kill_tree`, where somebody won't die.
    """
    spared = {os.getpid(), *kill_tree.ancestors(os.getpid())}
    marks = list(marks)
    births = {birth.pid: birth for birth in recorded if birth.pid not in spared}
    roots = {pid: handle for pid, birth in births.items() if (handle := birth.open()) is not None}
    commands: dict[int, str] = {}
    try:
        handles = kill_tree.strike(
            roots,
            lambda pid: pid not in spared and _is_marked(pid, house),
            marks=marks,
            spared=spared,
            told=lambda pid: commands.setdefault(pid, _command(pid)),
        )
    except OSError:
        kill_tree.close(roots)
        raise
    alive = kill_tree.await_deaths(handles, seconds=kill_tree.KILL_SECONDS)
    kill_tree.close(handles, but=alive)
    for mark in marks if not alive else ():
        kill_tree.remove_group(mark)
    cgroups.clear()
    found = [LeftOver(pid=pid, command=command, handle=handles[pid]) for pid, command in commands.items()]
    return [it for it in found if it.pid not in alive], [it for it in found if it.pid in alive]


def _is_marked(pid: int, house: str) -> bool:
    begin = f"{VARIABLE}{house}=".encode()
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # dead, or somebody else's
        return False
    found = (
        [entry for entry in environment.split(b"\0") if entry.startswith(begin)]
        if begin in environment
        else []
    )
    return bool(found) and found[0] != begin + _own().encode()


def _own() -> str:
    me = ProcessIdentity.of(os.getpid())
    return f"{me.pid}.{me.ticks}"


def _command(pid: int) -> str:
    try:
        path = Path(f"/proc/{pid}")
        words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return (words or (path / "comm").read_text(errors="replace").strip())[:200]
    except OSError:
        return "?"
