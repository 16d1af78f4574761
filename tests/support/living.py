"""Who is alive: a process that has died and was not reaped yet, by whoever that falls to, is not."""

from __future__ import annotations

import psutil


def lives(pid):
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
