"""The last to sweep: where the daemon and both guards are killed together, nothing that the daemon has started stays.

The guards find orphans as their parents; when both get SIGKILL at once, nobody is. This process is not above but beside
the daemon, a fork in a session of its own. It watches the daemon by a pidfd, and finds by the mark (`kill_tree`) what
that has started: Ray's agents, and what tasks have detached, whatever their parent is by then. Where a guard lives, it
sweeps too, and takes the sweeper along. Stdlib only, as the guards.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import Final

from governor.processes import cgroups, kill_tree, prctl

_HIGHEST: Final = os.sysconf("SC_OPEN_MAX")


def fork_sweeper() -> None:
    """Marks the caller, which is to be a daemon, and returns; the sweeper lives until that is dead. Call it where the
    guards are forked: the process is small, and alone in it is its only thread.
    """
    mark = kill_tree.mark_self(kill_tree.new_mark())
    if mark == kill_tree.UNMARKED:
        return  # there is nothing to find by
    daemon = os.pidfd_open(os.getpid())
    between = os.fork()
    if between != 0:
        os.close(daemon)
        os.waitpid(between, 0)
        return
    try:
        if os.fork() == 0:  # no child of the daemon, which would have to reap it
            _prepare(daemon)
            _sweep(daemon, mark)
    finally:
        os._exit(0)


def _prepare(kept: int) -> None:
    """No signal to a group of others, and no end of a pipe, is its own; and it is not in the cgroup that it is to kill."""
    cgroups.leave()
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.closerange(0, kept)
    os.closerange(kept + 1, _HIGHEST)
    prctl.name_process("gov-sweeper")


def _sweep(daemon: int, mark: int) -> None:
    poll = select.poll()
    poll.register(daemon, select.POLLIN)
    poll.poll()
    with contextlib.suppress(OSError):  # what was found is killed
        handles = kill_tree.strike({}, marks=(mark,), spared={os.getpid()})
        kill_tree.await_deaths(handles, seconds=kill_tree.KILL_SECONDS)
        kill_tree.remove_group(mark)
