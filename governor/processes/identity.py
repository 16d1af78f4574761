"""The identity of a process, beyond its pid: its start tick, and the boot that this tick counts from.

It uses no wall clock, so changing the clock does not change it, and a later process with the same pid never matches.
"""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path
from typing import Final, Self

import msgspec

from governor.processes.kill_tree import read_stat

_STATE: Final = 0
_STARTTIME: Final = 19
_EXIT_CODE: Final = 49
"""Positions in what `read_stat` returns."""
NEVER: Final = -1
"""The tick of a process that ended before its tick was read; no process has this one."""


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    ticks: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Self:
        """Of a process that runs, or has not been reaped. Raises ProcessLookupError when there is none."""
        if not (fields := read_stat(Path(f"/proc/{pid}"))):
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid=pid, ticks=int(fields[_STARTTIME]), boot=boot_id())

    def open(self) -> int | None:
        """A pidfd of this very process; None when it is gone."""
        if self.boot != boot_id():
            return None
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            with contextlib.suppress(ProcessLookupError):
                if ProcessIdentity.of(self.pid) == self:
                    return handle
            os.close(handle)
        return None


def zombie_exit_code(pid: int) -> int | None:
    """The exit code of a zombie, negative when a signal ended it; None for all other processes."""
    fields = read_stat(Path(f"/proc/{pid}"))
    return os.waitstatus_to_exitcode(int(fields[_EXIT_CODE])) if fields and fields[_STATE] == "Z" else None


def is_stopped(pid: int) -> bool:
    """By SIGSTOP or a similar signal; a traced process (t) depends on its tracer."""
    try:
        return read_stat(Path(f"/proc/{pid}"))[_STATE : _STATE + 1] == ["T"]
    except OSError:  # no free descriptor, for one
        return False


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
