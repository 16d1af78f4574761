"""Whether a process is alive; a zombie is not."""

from __future__ import annotations

from pathlib import Path

import psutil


def lives(pid):
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def first_child(parent: psutil.Process) -> psutil.Process:
    """The live child that was forked first. The kernel lists children in this order, and adopted ones after them; pids are no
    order, because they wrap around.
    """
    listed = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text()
    return psutil.Process(int(listed.split()[0]))
