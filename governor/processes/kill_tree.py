"""Finds a process tree, kills it, and waits for its death: also processes in sessions and environments of their own.

Three selectors. *Descendants*, by the parents that the kernel knows. The *mark*: a resource limit that Linux has kept
without a use since 2.4 (RLIMIT_LOCKS). Children inherit it by fork, with an empty environment too; so it also finds
processes whose parent has died. A mark is hierarchical, as a network address: a daemon, one child of it, one runner of
that child. The mark of a daemon or a child selects all that is below it. And the *cgroup* of a mark, where the system
grants one (`cgroups`): it also holds processes that have set the limit themselves.

All that is found is stopped, the roots first, until no new process is found: a stopped process does not fork. Then all are
killed, and cgroups as a whole: also processes that fork faster than they are found. Each process is held by a pidfd: its
pid may be reused. Stdlib only: the guard uses it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor.processes import cgroups
from governor.processes.readiness import is_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

KILL_SECONDS: Final = 5.0
"""How long a killed process may take to die: only one in an uninterruptible system call takes longer."""
STOP_SECONDS: Final = 0.05
"""How long a process may take to stop; one that we may not stop never does."""
SETTLE_SECONDS: Final = 0.1
"""How long processes that end during a search, of any user, may cause another search."""
EMPTY_SECONDS: Final = 1.0
"""How long the cgroup of dead processes may take to be empty."""
UNMARKED: Final = 0
MARK_LIMIT: Final = 10
"""RLIMIT_LOCKS, which `resource` has no name for."""
_PARENT: Final = 1
"""Its position in `read_stat`."""
_DAEMON_BITS: Final = 30
_CHILD_BITS: Final = 20
_RUNNER_BITS: Final = 12
"""Of a mark, from the top: within one mark of the level above, two processes of a level never have the same number."""
_BELOW_DAEMON: Final = _CHILD_BITS + _RUNNER_BITS

_numbers = itertools.count(int.from_bytes(os.urandom(4), "big"))
"""Of children; from a random start, so that survivors of an earlier daemon do not match."""


# -- marks ---------------------------------------------------------------------------------------------------------


def new_mark() -> int:
    """For a daemon, or another process at the root of a tree."""
    return _within(_DAEMON_BITS, int.from_bytes(os.urandom(8), "big")) << _BELOW_DAEMON


def new_child_mark() -> int:
    """For the next child of this process, below its own mark where that is a daemon's or that of a daemon's child; else below a
    new one.
    """
    own = own_mark()
    if own != UNMARKED and not is_daemon() and own == _levels(own)[1]:
        return mark_of_runner(own, next(_numbers))
    return mark_of_child(own if is_daemon() else new_mark(), next(_numbers))


def mark_of_child(daemon: int, number: int) -> int:
    return daemon | _within(_CHILD_BITS, number) << _RUNNER_BITS


def mark_of_runner(child: int, number: int) -> int:
    return child | _within(_RUNNER_BITS, number)


def mark_self(mark: int) -> int:
    """Marks this process, and all that it starts from now on; `UNMARKED` where the system refuses."""
    if mark == UNMARKED:
        cgroups.leave()
    grouped = mark != UNMARKED and cgroups.join(_levels(mark))
    try:
        resource.setrlimit(MARK_LIMIT, (mark or -1, resource.getrlimit(MARK_LIMIT)[1]))
    except (OSError, ValueError):
        return mark if grouped else UNMARKED
    return mark


def own_mark() -> int:
    return read_mark(os.getpid()) or cgroups.own_mark() or UNMARKED


def is_daemon() -> bool:
    """Whether this process has the mark of a daemon."""
    own = own_mark()
    return own != UNMARKED and own >> _BELOW_DAEMON << _BELOW_DAEMON == own


def marked() -> dict[int, list[int]]:
    """The pids of all marked processes that run, by the mark of the daemon's child that they are, or are below."""
    found: dict[int, list[int]] = {}
    grouped = cgroups.marks()
    for pid in _all_pids():
        with contextlib.suppress(ProcessLookupError):
            child = (grouped.get(pid) or read_mark(pid)) >> _RUNNER_BITS << _RUNNER_BITS
            if child != UNMARKED and _state(Path(f"/proc/{pid}")) not in "ZX":
                found.setdefault(child, []).append(pid)
    return found


def remove_group(mark: int) -> None:
    """Removes the cgroup of a mark, if there is one and it is empty. Blocks."""
    if mark != UNMARKED and (group := cgroups.find(_levels(mark))) is not None:
        cgroups.remove(group, seconds=EMPTY_SECONDS)


def _levels(mark: int) -> list[int]:
    """The marks of the daemon, its child and that child's runner that this mark is, or is below."""
    return list(dict.fromkeys(mark >> bits << bits for bits in (_BELOW_DAEMON, _RUNNER_BITS, 0)))


def _within(bits: int, number: int) -> int:
    return 1 + number % ((1 << bits) - 1)


def read_mark(pid: int) -> int:
    """`UNMARKED` too where we may not read it. Raises ProcessLookupError."""
    try:
        found = resource.prlimit(pid, MARK_LIMIT)[0]
    except PermissionError:
        return UNMARKED
    return found if found >> _BELOW_DAEMON > 0 else UNMARKED  # no limit is -1; small values are not ours


# -- the end of a tree ---------------------------------------------------------------------------------------------


def kill_tree(pid: int, handle: int | None, mark: int = UNMARKED) -> list[int]:
    """Kills the process of the pidfd (None: it is dead already), its descendants, and all that have its mark; waits for
    their deaths. Returns the pids of survivors: stuck in the kernel, or of another user.

    Blocks up to `KILL_SECONDS` until all are stopped, and as long again until they are dead. Raises OSError when no
    descriptors are left to watch them; those that were found are killed nevertheless.
    """
    try:
        roots = {} if handle is None else {pid: os.dup(handle)}
    except OSError:
        if handle is not None:
            send(handle, signal.SIGKILL)
        raise
    alive = finish(stop_and_kill(roots, marks=(mark,)), marks=(mark,))
    close(alive)
    return list(alive)


def stop_and_kill(
    roots: Mapping[int, int],
    wanted: Callable[[int], bool] | None = None,
    *,
    marks: Iterable[int] = (),
    spared: Collection[int] = (),
    on_stopped: Callable[[int], object] = lambda _: None,
) -> dict[int, int]:
    """Stops and kills the processes of these pidfds, all below them, all that have one of these marks or are `wanted`, and
    all below those. Calls `on_stopped` with the pid of each stopped one before any is killed.

    Returns the pidfds of all, which the caller closes; if it raises, as `kill_tree`, all are closed, those of the roots too.
    Blocks until all were sent SIGKILL.
    """
    handles = dict(roots)
    selected = _Selector(marks, wanted)
    with contextlib.ExitStack() as failed:
        failed.callback(close, handles)
        try:
            _stop_all(roots, handles, selected, {*roots, *spared})
            for pid, handle in handles.items():
                if not is_dead(handle):
                    on_stopped(pid)
        finally:
            # Also after an error: no process must stay stopped.
            for handle in handles.values():
                send(handle, signal.SIGKILL)
            dying = selected.kill_groups(spared)
        _stop_new(dying - handles.keys(), handles, selected)
        failed.pop_all()
    return handles


def finish(handles: Mapping[int, int], *, marks: Iterable[int]) -> dict[int, int]:
    """Waits for the deaths of what `stop_and_kill` has found by these marks, for `KILL_SECONDS` at most, and removes the
    cgroups of the marks. Returns the pidfds of survivors, which the caller closes; the others are closed. Blocks.
    """
    alive = await_deaths(handles, seconds=KILL_SECONDS)
    close(handles, keep=alive)
    for mark in () if alive else marks:
        remove_group(mark)
    return alive


def await_deaths(handles: Mapping[int, int], *, seconds: float) -> dict[int, int]:
    """Blocks until these are dead, or for `seconds`; returns the survivors."""
    waiting = {handle: pid for pid, handle in handles.items()}
    poll = select.poll()
    for handle in waiting:
        poll.register(handle, select.POLLIN)
    end = time.monotonic() + seconds
    while waiting:
        for handle, _ in poll.poll(max(0.0, end - time.monotonic()) * 1000):
            poll.unregister(handle)
            del waiting[handle]
        if time.monotonic() >= end:
            break
    return {pid: handle for handle, pid in waiting.items()}


def close(handles: Mapping[int, int], keep: Collection[int] = ()) -> None:
    """Closes the pidfds of all pids but those in `keep`."""
    for pid, handle in handles.items():
        if pid not in keep:
            os.close(handle)


def send(handle: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(handle, number)


def is_dead(handle: int) -> bool:
    """Whether the process of this pidfd is dead; another process may have its pid by now."""
    return is_readable(handle)


def descendants(*roots: int) -> set[int]:
    """All processes below these, read from the lists of children of their threads, not by a walk over all of /proc."""
    found: set[int] = set()
    stack = list(roots)
    while stack:
        new = _children(stack.pop()) - found
        found |= new
        stack += new
    return found


def _children(pid: int) -> set[int]:
    """Of all its threads; none when it dies meanwhile. Without pathlib: a runner of Ray has two dozen threads."""
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  # as said above
            with (
                contextlib.suppress(FileNotFoundError, ProcessLookupError),
                open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as listing,  # noqa: PTH123  # as said above
            ):
                found.update(map(int, listing.read().split()))
    return found


def ancestors(pid: int) -> set[int]:
    found: set[int] = set()
    while (fields := read_stat(Path(f"/proc/{pid}"))) and (pid := int(fields[_PARENT])) and pid not in found:
        found.add(pid)
    return found


def _stop_all(roots: Mapping[int, int], handles: dict[int, int], selected: _Selector, seen: set[int]) -> None:
    """Stops the roots, then all below them and all selected ones except those in `seen`, until no new one is found."""
    begin = time.monotonic()
    for pid, handle in roots.items():
        if not is_dead(handle):
            _stop(pid, handle)
            _raise_priority(pid)
    while (passed := time.monotonic() - begin) < KILL_SECONDS:
        found, settled = selected.find()
        below = descendants(*(pid for pid, handle in handles.items() if not is_dead(handle)))
        new = (found | below) - seen
        if not new and (settled or passed > SETTLE_SECONDS):
            break
        seen |= new
        _stop_new(new & found, handles, selected)
        _stop_new(new - found, handles)


class _Selector:
    """Selects processes by marks, by the cgroups of marks, or by the predicate `wanted`."""

    def __init__(self, marks: Iterable[int], wanted: Callable[[int], bool] | None) -> None:
        self._marks = {mark for mark in marks if mark != UNMARKED}
        self._wanted = wanted

    def __call__(self, pid: int) -> bool:
        """Raises ProcessLookupError for a process that is gone."""
        return self._is_found(pid) or any(cgroups.is_in(pid, group) for group in self._groups())

    def find(self) -> tuple[set[int], bool]:
        """All that match; and whether no process ended during the search: it might have forked unseen."""
        found: set[int] = set()
        settled = True
        if self._wanted is None and not self._marks:
            return found, settled
        for pid in _all_pids():
            try:
                if self._is_found(pid):
                    found.add(pid)
            except ProcessLookupError:
                settled = False
        return found.union(*map(cgroups.pids, self._groups())), settled

    def kill_groups(self, spared: Collection[int]) -> set[int]:
        """Kills the cgroups as a whole, except those that contain a `spared` process; returns the pids still in them."""
        dying: set[int] = set()
        for group in self._groups():
            if cgroups.pids(group).isdisjoint({os.getpid(), *spared}):
                cgroups.kill(group)
                dying |= cgroups.pids(group)
        return dying

    def _is_found(self, pid: int) -> bool:
        marked = not self._marks.isdisjoint(_levels(read_mark(pid)))
        return marked or (self._wanted is not None and self._wanted(pid))

    def _groups(self) -> list[Path]:
        return [group for mark in self._marks if (group := cgroups.find(_levels(mark))) is not None]


def _all_pids() -> Iterable[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # there may be thousands


def _stop_new(pids: set[int], handles: dict[int, int], wanted: Callable[[int], bool] | None = None) -> None:
    """Stops them, and adds their pidfds to `handles`. When descriptors run out, kills the rest at once and raises OSError."""
    rest = list(pids)
    try:
        while rest:
            pid = rest[-1]
            with contextlib.suppress(ProcessLookupError):
                handles[pid] = os.pidfd_open(pid)
                if is_dead(handles[pid]) or (wanted is not None and not wanted(pid)):  # the pid was reused
                    os.close(handles.pop(pid))
                else:
                    _stop(pid, handles[pid])
            rest.pop()
    except OSError:
        for pid in rest:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        raise


def _stop(pid: int, handle: int) -> None:
    """Returns when no thread of it runs: a signal takes some time to reach the one that forks. The kernel notifies only the
    parent of a stop, so this polls.
    """
    send(handle, signal.SIGSTOP)
    end = time.monotonic() + STOP_SECONDS
    running = _threads(pid)
    while running := [thread for thread in running if _state(thread) not in "TtZX"]:
        if time.monotonic() > end:
            return
        time.sleep(1e-4)


def _state(process: Path) -> str:
    return next(iter(read_stat(process)), "X")


def read_stat(process: Path) -> list[str]:
    """The fields of /proc/PID/stat, or of a thread, behind the name, which may hold blanks and brackets; none when the process is gone."""
    try:
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _raise_priority(pid: int) -> None:
    """Ray runs its workers at nice 15; a dying one then waits for those that start, 70 to 200 ms against 20 (measured).
    Without the permission to raise priorities, this does nothing.
    """
    for thread in _threads(pid):
        try:
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)
        except PermissionError:
            return
        except ProcessLookupError:
            continue


def _threads(pid: int) -> list[Path]:
    """Its threads; none when it dies meanwhile, which may raise at any step of the listing."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []
