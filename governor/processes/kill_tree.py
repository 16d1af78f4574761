"""Finds a process tree, kills it, and sees it dead: what it has started in sessions and environments of its own too.

Three selectors. *Descendants*, by the parents that the kernel knows. The *mark*: a resource limit that Linux has kept
without a use since 2.4 (RLIMIT_LOCKS). Its children inherit it, by fork alone and with an empty environment too; so it
finds those whose parent has died. A mark is like the address of a network: of the daemon, of one child of it, of one
runner of that child. Who asks for the first two gets all that is below. And the *cgroup* of a mark, where the system
grants one (`cgroups`): it also holds those that have set the limit themselves.

All that is found is stopped, the roots first, until nobody new is found: what stands still forks no more. Then all are
killed, and cgroups as a whole: also what forks faster than it is found. A pidfd stands for each process: its number may
have another owner later. Stdlib only: the guard uses it.
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

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

KILL_SECONDS: Final = 5.0
"""How long a killed process may take to die: only one in an uninterruptible system call takes longer."""
STOP_SECONDS: Final = 0.05
"""How long a process may take to stand still; who is not ours to stop never does."""
SETTLE_SECONDS: Final = 0.1
"""How long processes that end, of whomever, may make us look once more."""
EMPTY_SECONDS: Final = 1.0
"""How long the cgroup of processes that were seen dead may take to be empty."""
UNMARKED: Final = 0
MARK_LIMIT: Final = 10
"""RLIMIT_LOCKS, which `resource` has no name for."""
_PARENT: Final = 1
"""Its place in `_stat`."""
_DAEMON_BITS: Final = 30
_CHILD_BITS: Final = 20
_RUNNER_BITS: Final = 12
"""Of a mark, from the top: two of a level never live at the same time in one of the level above."""
_BELOW_DAEMON: Final = _CHILD_BITS + _RUNNER_BITS

_numbers = itertools.count(int.from_bytes(os.urandom(4), "big"))
"""Of children: what an earlier daemon has left, and nobody could kill, is not taken for theirs."""


# -- marks ---------------------------------------------------------------------------------------------------------


def new_mark() -> int:
    """For a daemon, or another process that starts the first of a tree."""
    return _within(_DAEMON_BITS, int.from_bytes(os.urandom(8), "big")) << _BELOW_DAEMON


def new_child_mark() -> int:
    """For the next child of this process, below its own mark where that is a daemon's; else below a new one."""
    return mark_of_child(own_mark() if is_daemon() else new_mark(), next(_numbers))


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
    return _mark(os.getpid()) or cgroups.own_mark() or UNMARKED


def is_daemon() -> bool:
    """Whether this process has the mark of a daemon."""
    own = own_mark()
    return own != UNMARKED and own >> _BELOW_DAEMON << _BELOW_DAEMON == own


def bears(*marks: int) -> Callable[[int], bool]:
    """Whether a process has one of these marks, or one below it. Raises ProcessLookupError of one that is gone."""
    wanted = {mark for mark in marks if mark != UNMARKED}

    def has_one(pid: int) -> bool:
        return not wanted.isdisjoint(_levels(_mark(pid)))

    return has_one


def marked() -> dict[int, list[int]]:
    """All marked processes that live, by the mark of the child of a daemon that they are, or are below of."""
    found: dict[int, list[int]] = {}
    grouped = cgroups.marks()
    for pid in _all():
        with contextlib.suppress(ProcessLookupError):
            child = (grouped.get(pid) or _mark(pid)) >> _RUNNER_BITS << _RUNNER_BITS
            if child != UNMARKED and _state(Path(f"/proc/{pid}")) not in "ZX":
                found.setdefault(child, []).append(pid)
    return found


def remove_group(mark: int) -> None:
    """Removes the cgroup of a mark, if there is one and nothing lives in it. Blocks."""
    if mark != UNMARKED and (group := cgroups.find(_levels(mark))) is not None:
        cgroups.remove(group, seconds=EMPTY_SECONDS)


def _levels(mark: int) -> list[int]:
    """The marks of the daemon, its child, and that one's runner, as far as this mark is of one."""
    return list(dict.fromkeys(mark >> bits << bits for bits in (_BELOW_DAEMON, _RUNNER_BITS, 0)))


def _within(bits: int, number: int) -> int:
    return 1 + number % ((1 << bits) - 1)


def _mark(pid: int) -> int:
    """`UNMARKED` too where we may not know. Raises ProcessLookupError."""
    try:
        found = resource.prlimit(pid, MARK_LIMIT)[0]
    except PermissionError:
        return UNMARKED
    return found if found >> _BELOW_DAEMON > 0 else UNMARKED  # no limit is -1; and one may have a use for it


# -- the end of a tree ---------------------------------------------------------------------------------------------


def kill_tree(pid: int, handle: int | None, mark: int = UNMARKED) -> list[int]:
    """Kills the process of the pidfd (None: it is dead already), its descendants, and all that has its mark; waits until
    they are dead. The pids that live on: stuck in the kernel, or of another user.

    Blocks up to `KILL_SECONDS` until all stand still, and as long again until they are dead. Raises OSError without
    descriptors to look at them; those that were found are killed all the same.
    """
    roots = {} if handle is None else {pid: handle}
    handles = strike(roots, marks=(mark,))
    try:
        alive = list(await_deaths(handles, seconds=KILL_SECONDS))
    finally:
        close(handles, roots)
    remove_group(mark)
    return alive


def strike(
    roots: Mapping[int, int],
    wanted: Callable[[int], bool] | None = None,
    *,
    marks: Iterable[int] = (),
    spared: Collection[int] = (),
    told: Callable[[int], object] = lambda _: None,
) -> dict[int, int]:
    """Stops and kills the processes of these pidfds, all below them, all that have one of these marks or are `wanted`, and
    all below those. `told` of the pid of each that stands still before any is killed.

    Their pidfds; those that are not of `roots` are the caller's to `close`. Blocks until all were sent SIGKILL, and
    raises, as `kill_tree`.
    """
    handles = dict(roots)
    selected = _Selected(marks, wanted)
    with contextlib.ExitStack() as failed:
        failed.callback(close, handles, roots)
        try:
            _stop_all(roots, handles, selected, {*roots, *spared})
            for pid, handle in handles.items():
                if not is_dead(handle):
                    told(pid)
        finally:
            # Also when somebody could not be looked at: nobody is to stay stopped.
            for handle in handles.values():
                send(handle, signal.SIGKILL)
            dying = selected.kill_groups(spared)
        _hold(dying - handles.keys(), handles, selected)
        failed.pop_all()
    return handles


def await_deaths(handles: Mapping[int, int], *, seconds: float) -> dict[int, int]:
    """Blocks until these are dead, or for so long; those that live on."""
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


def close(handles: Mapping[int, int], but: Collection[int] = ()) -> None:
    """Closes the pidfds of all `but` these pids."""
    for pid, handle in handles.items():
        if pid not in but:
            os.close(handle)


def send(handle: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(handle, number)


def is_dead(handle: int) -> bool:
    """Its pid may be another process's by now."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def descendants(*roots: int) -> set[int]:
    """All below these, read from the lists of children of their threads, not by a walk over all of /proc."""
    found: set[int] = set()
    stack = list(roots)
    while stack:
        for listing in _threads(stack.pop()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                new = {int(child) for child in (listing / "children").read_text().split()} - found
                found |= new
                stack += new
    return found


def ancestors(pid: int) -> set[int]:
    found: set[int] = set()
    while (fields := _stat(Path(f"/proc/{pid}"))) and (pid := int(fields[_PARENT])) and pid not in found:
        found.add(pid)
    return found


def _stop_all(roots: Mapping[int, int], handles: dict[int, int], selected: _Selected, seen: set[int]) -> None:
    """Stops the roots, then all below them and all that are selected, but those that were `seen`, until nobody is new."""
    begin = time.monotonic()
    for pid, handle in roots.items():
        if not is_dead(handle):
            _stop(pid, handle)
            _hurry(pid)
    while (passed := time.monotonic() - begin) < KILL_SECONDS:
        found, settled = selected.find()
        below = descendants(*(pid for pid, handle in handles.items() if not is_dead(handle)))
        late = (found | below) - seen
        if not late and (settled or passed > SETTLE_SECONDS):
            break
        seen |= late
        _hold(late & found, handles, selected)
        _hold(late - found, handles)


class _Selected:
    """What is selected by marks, by their cgroups, or else."""

    def __init__(self, marks: Iterable[int], wanted: Callable[[int], bool] | None) -> None:
        self._marks = [mark for mark in marks if mark != UNMARKED]
        self._bears = bears(*self._marks)
        self._wanted = wanted

    def __call__(self, pid: int) -> bool:
        """Raises ProcessLookupError of one that is gone."""
        return self._is_found(pid) or any(cgroups.is_in(pid, group) for group in self._groups())

    def find(self) -> tuple[set[int], bool]:
        """Those whom we may look at; and whether nobody ended meanwhile, who might have forked behind our back."""
        found: set[int] = set()
        settled = True
        if self._wanted is None and not self._marks:
            return found, settled
        for pid in _all():
            try:
                if self._is_found(pid):
                    found.add(pid)
            except ProcessLookupError:
                settled = False
        return found.union(*map(cgroups.pids, self._groups())), settled

    def kill_groups(self, spared: Collection[int]) -> set[int]:
        """Kills cgroups as a whole, but for those with one that is `spared` in it; those who are still dying."""
        dying: set[int] = set()
        for group in self._groups():
            if cgroups.pids(group).isdisjoint({os.getpid(), *spared}):
                cgroups.kill(group)
                dying |= cgroups.pids(group)
        return dying

    def _is_found(self, pid: int) -> bool:
        return self._bears(pid) or (self._wanted is not None and self._wanted(pid))

    def _groups(self) -> list[Path]:
        return [group for mark in self._marks if (group := cgroups.find(_levels(mark))) is not None]


def _all() -> Iterable[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # there may be thousands


def _hold(pids: set[int], handles: dict[int, int], wanted: Callable[[int], bool] | None = None) -> None:
    """Stops them. Where descriptors run out, those that are left are killed at once, and OSError is raised."""
    rest = list(pids)
    try:
        while rest:
            pid = rest[-1]
            with contextlib.suppress(ProcessLookupError):
                handles[pid] = os.pidfd_open(pid)
                if is_dead(handles[pid]) or (
                    wanted is not None and not wanted(pid)
                ):  # a new owner of the number
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
    """Returns when no thread of it runs: a signal takes its time to reach the one that forks. The kernel tells of this
    only to a parent, so it is asked.
    """
    send(handle, signal.SIGSTOP)
    end = time.monotonic() + STOP_SECONDS
    running = _threads(pid)
    while running := [thread for thread in running if _state(thread) not in "TtZX"]:
        if time.monotonic() > end:
            return
        time.sleep(1e-4)


def _state(process: Path) -> str:
    return next(iter(_stat(process)), "X")


def _stat(process: Path) -> list[str]:
    """The fields behind the name, which may hold blanks and brackets; none of one that is gone."""
    try:
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _hurry(pid: int) -> None:
    """Ray runs its workers at nice 15; a dying one then waits for those that start, 70 to 200 ms against 20 (measured).
    Whoever may not raise priorities lets it be.
    """
    for thread in _threads(pid):
        try:
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)
        except PermissionError:
            return
        except ProcessLookupError:
            continue


def _threads(pid: int) -> list[Path]:
    """Its threads; none when it dies meanwhile, which may show at any step of the listing."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []
