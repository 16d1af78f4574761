"""Who is alive: a process that has died and was not reaped yet, by whoever that falls to, is not."""

from __future__ import annotations

from pathlib import Path

import psutil


def lives(pid):
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def first_child(parent: psutil.Process) -> psutil.Process:
    """The first that it has forked, of those that live. The kernel lists children in this order, and what was adopted behind
    them; the order of pids begins anew at the highest.
    """
    listed = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text()
    return psutil.Process(int(listed.split()[0]))
