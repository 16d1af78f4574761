"""The guard: two small processes above the daemon that leave nothing behind, whichever of the three is killed.

Outside systemd nothing kills a process that left its process group. A guard is a subreaper: every orphan below it
becomes its child, and the daemon is its child too. A single guard would leave its orphans to init when it gets SIGKILL;
so there are two, first guard -> second guard -> daemon, with the same loop. Rules:
* Stdlib only, one thread, forked before anything heavy is imported.
* The daemon has a process group of its own and gets each signal once, from the guards: a Ctrl-C of the terminal and a
  signal to the job's group reach the first guard alone.
* Ctrl-Z stops the first guard and the daemon; `fg` and `bg` continue both.
* If the daemon dies, the second guard sweeps. If the second guard dies, the daemon dies with it (PDEATHSIG) and the first
  one sweeps. If the first guard dies, the kernel signals the second one (PDEATHSIG too), which kills all below it, the daemon
  too, however busy that is. If both guards die together, the daemon dies with the second one, and the sweeper kills the rest.
* The exit code is the daemon's; 128 + n when signal n ended it, as in shells.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from governor.processes import cgroups, kill_tree, prctl
from governor.processes.sweeper import fork_sweeper, is_sweeper

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGCONT,
)
_GUARD_DIED = signal.SIGRTMIN
"""From the kernel, to the second guard; nothing else sends it."""
_TAKEN = frozenset({*_FORWARDED, signal.SIGTSTP, signal.SIGCHLD, _GUARD_DIED})

FOLDER = "RUN_GOVERNOR_FOLDER"
"""Variable with the path of the folder that the guard removes; the process that uses the folder unsets the variable."""
SWEEP_SECONDS = 10.0
"""How long the guard tries to kill every descendant before it prints the survivors and exits."""


def needs_guard(environ: Mapping[str, str], *, pid: int) -> bool:
    """Whether the process `pid` needs a guard: not where a systemd unit's cgroup does the work.

    INVOCATION_ID is no proof: everything below a unit inherits it, a shell in a terminal emulator too. SYSTEMD_EXEC_PID
    names the very process that the unit started, and NOTIFY_SOCKET is there while a manager waits for READY.
    """
    return not environ.get("NOTIFY_SOCKET") and environ.get("SYSTEMD_EXEC_PID") != str(pid)


def start_guard(*, makes_folder: bool = False) -> None:
    """Forks where a guard is needed, and returns in the daemon only; the guard exits with the daemon's exit code.

    `makes_folder`: a short one of mode 0700, for sockets. The variable `FOLDER` has its path, and the guard removes it.

    Call it first, before threads, event loops and heavy imports. Raises RuntimeError when threads exist already:
    a fork would lose them.
    """
    if not needs_guard(os.environ, pid=os.getpid()):
        return
    if threading.active_count() > 1:
        raise RuntimeError("start_guard() must be called before any thread is started")
    folder = _make_folder() if makes_folder else None
    sys.stdout.flush()
    sys.stderr.flush()
    # Blocked before the forks: no signal is lost between them and the waits below.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
    prctl.die_with_parent(expected=_fork_below(folder, is_second=False), number=_GUARD_DIED)
    prctl.die_with_parent(expected=_fork_below(folder, is_second=True))
    fork_sweeper()
    # A background group of the terminal: writing goes through also under `stty tostop`, reading fails instead
    # of stopping the daemon in silence.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _make_folder() -> str | None:
    """None where the disk has no room for one: the code that needs it reports that."""
    import tempfile  # noqa: PLC0415  # the guard of a `serve` needs none

    try:
        folder = os.environ[FOLDER] = tempfile.mkdtemp(prefix="governor-")
    except OSError:
        return None
    return folder


def _fork_below(folder: str | None, *, is_second: bool) -> int:
    """Forks. Returns in the child, which leads a process group, with the parent's pid; the parent becomes its guard."""
    prctl.adopt_orphans()
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        return guard
    code = 70
    try:
        prctl.name_process("governor-guard2" if is_second else "governor-guard")
        code = _guard(child, is_second=is_second)
        if folder is not None:
            import shutil  # noqa: PLC0415  # as tempfile below

            shutil.rmtree(folder, ignore_errors=True)
    except BaseException:  # noqa: BLE001 - the other guard sweeps
        sys.excepthook(*sys.exc_info())
    os._exit(code)


def _guard(child: int, *, is_second: bool) -> int:
    """Forwards signals and reaps orphans until `child` or the first guard ends; sweeps; returns the exit code."""
    # The default disposition of SIGWINCH and SIGCONT drops them while blocked, that of SIGCHLD too, unless handled.
    for quiet in (signal.SIGCHLD, signal.SIGWINCH, signal.SIGCONT):
        signal.signal(quiet, lambda *_: None)
    status: int | None = None
    while status is None:
        number = signal.sigwaitinfo(_TAKEN).si_signo
        if number == _GUARD_DIED:
            os.kill(child, signal.SIGKILL)  # first, so that it records none of the others' deaths
            status = signal.SIGKILL
            break
        if number != signal.SIGCHLD:
            os.kill(child, number)  # not reaped yet, so the pid still belongs to it
        if number == signal.SIGTSTP and not is_second:
            os.kill(os.getpid(), signal.SIGSTOP)
        status = reap().get(child)
    survivors = sweep()
    cgroups.clear()
    if survivors:
        sys.stderr.write(
            f"governor: still alive after SIGKILL: pid {', '.join(map(str, sorted(survivors)))}\n"
        )
        sys.stderr.flush()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def reap() -> dict[int, int]:
    """Every child that has ended: pid -> wait status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def sweep() -> set[int]:
    """Kills and reaps descendants until none is left, the sweeper last; the pids of those that still run after
    SWEEP_SECONDS.
    """
    deadline = time.monotonic() + SWEEP_SECONDS
    while True:
        reap()
        if not _has_children():
            return set()
        below = kill_tree.descendants(os.getpid())
        sweepers = set(filter(is_sweeper, below))
        _kill(below - sweepers or sweepers)
        remaining = deadline - time.monotonic()
        if remaining <= 0 or (signal.sigtimedwait({signal.SIGCHLD}, remaining) is None):
            _kill(sweepers)
            reap()
            return kill_tree.descendants(os.getpid()) - sweepers


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _has_children() -> bool:
    """Including the orphans that this subreaper has adopted."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
