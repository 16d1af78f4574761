"""The sweeper: kills all that the daemon has started when the daemon and both guards are killed together.

The guards find orphans because they are their parents; when both get SIGKILL at once, there is no such parent. The sweeper
runs not above but beside the daemon, as a fork in a session of its own. It watches the daemon by a pidfd, and finds by the
mark (`kill_tree`) what the daemon has started: Ray's agents, and what tasks have detached, whatever their parent is by then.
A guard that still runs sweeps too, and kills the sweeper last, because the guard may be killed meanwhile. Stdlib only, as the guards.

A script that serves runs itself has no guards, and can't be forked safely: `beside` starts its sweeper as a program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor.processes import cgroups, kill_tree, prctl
from governor.processes.readiness import is_readable

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME: Final = "gov-sweeper"
_HIGHEST: Final = os.sysconf("SC_OPEN_MAX")


def fork_sweeper() -> None:
    """Marks the caller, which becomes the daemon, and returns; the sweeper runs until the daemon is dead. Call it where the
    guards are forked: the process is small, and has a single thread.
    """
    mark = kill_tree.mark_self(kill_tree.new_mark())
    if mark == kill_tree.UNMARKED:
        return  # without a mark the sweeper could find nothing
    daemon = os.pidfd_open(os.getpid())
    between = os.fork()
    if between != 0:
        os.close(daemon)
        os.waitpid(between, 0)
        return
    try:
        if os.fork() == 0:  # not a child of the daemon, which would have to reap it
            _prepare(daemon)
            _sweep(daemon, mark)
    finally:
        os._exit(0)


@contextlib.contextmanager
def beside(*folders: Path) -> Iterator[None]:
    """While the context is open this process has a mark of its own, and a sweeper waits for its death: it kills then what
    has the mark, and removes the folders. Another process with the mark of a daemon may have started this one.
    """
    before = kill_tree.own_mark()
    mark = kill_tree.mark_self(kill_tree.new_mark())
    if mark == kill_tree.UNMARKED:
        yield
        return
    import subprocess  # noqa: PLC0415  # the guard needs none

    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))  # as the forkserver's
    sweeper = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "governor.processes.sweeper",
            str(os.getpid()),
            str(mark),
            *map(str, folders),
        ],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        sweeper.kill()
        sweeper.wait()
        kill_tree.mark_self(before)


def is_sweeper(pid: int) -> bool:
    """Whether the process has the name of one, also when it is dead but not yet reaped."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip() == NAME
    except OSError:
        return False


def _prepare(kept: int) -> None:
    """Detaches it from the daemon's session, process group, pipes, and from the cgroup that it is to kill."""
    cgroups.leave()
    with contextlib.suppress(PermissionError):  # a program leads its session already
        os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.closerange(0, kept)
    os.closerange(kept + 1, _HIGHEST)
    prctl.name_process(NAME)


def _sweep(daemon: int, mark: int) -> None:
    is_readable(daemon, timeout=None)
    _sweep_now(mark)


def _sweep_now(mark: int) -> None:
    with contextlib.suppress(OSError):  # all that was found is killed nevertheless
        handles = kill_tree.stop_and_kill({}, marks=(mark,), spared={os.getpid()})
        kill_tree.finish(handles, marks=(mark,))


def main() -> None:
    """The program of `beside`."""
    daemon, mark = map(int, sys.argv[1:3])
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(daemon)
        if os.getppid() == daemon:  # else another process may have its pid
            _prepare(handle)
            is_readable(handle, timeout=None)
    _sweep_now(mark)
    import shutil  # noqa: PLC0415  # as above

    for folder in sys.argv[3:]:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
