"""The death of a tree of processes, without Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from governor.processes import kill_tree

TREE = """
import ctypes, os, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(1000)
            os._exit(0)
        time.sleep(1000)
time.sleep(1000)
"""


@pytest.fixture
def tree():
    process = subprocess.Popen([sys.executable, "-c", TREE])
    root = psutil.Process(process.pid)
    while (
        len(alive(descendants := root.children())) < 4
    ):  # orphans are adopted, and those between them have gone
        time.sleep(0.01)
    handle = os.pidfd_open(process.pid)
    yield process, handle, alive(descendants)
    os.close(handle)
    for each in [*alive(descendants), process]:
        each.kill()
    process.wait()


def alive(processes):
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def test_all_below_it_are_dead_in_sessions_of_their_own_too(tree):
    process, handle, descendants = tree
    assert kill_tree.kill_tree(process.pid, handle) == []
    assert not alive(descendants)
    assert process.wait() == -signal.SIGKILL


def test_a_survivor_is_returned_and_the_others_are_dead(tree, monkeypatch):
    process, handle, descendants = tree
    spared = descendants[-1]
    honest = signal.pidfd_send_signal

    def refusing(which, number):
        if f"Pid:\t{spared.pid}\n" in Path(f"/proc/self/fdinfo/{which}").read_text():
            raise PermissionError(1, "of another user")
        honest(which, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", refusing)
    monkeypatch.setattr(kill_tree, "KILL_SECONDS", 1.5)  # the others die meanwhile
    assert kill_tree.kill_tree(process.pid, handle) == [spared.pid]
    assert alive(descendants) == [spared]


def test_a_root_whose_tree_cannot_be_read_is_killed(tree, monkeypatch):
    process, handle, _ = tree

    def broken(_):
        raise OSError(24, "too many open files")

    monkeypatch.setattr(kill_tree, "descendants", broken)
    with pytest.raises(OSError, match="too many"):
        kill_tree.kill_tree(process.pid, handle)
    assert process.wait(timeout=5) == -signal.SIGKILL


def test_processes_that_cannot_be_opened_are_not_left_stopped(tree, monkeypatch):
    process, handle, descendants = tree
    honest, left = os.pidfd_open, iter(range(2))

    def scarce(pid):
        if next(left, None) is None:
            raise OSError(24, "too many open files")
        return honest(pid)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", scarce)
        with pytest.raises(OSError, match="too many"):
            kill_tree.kill_tree(process.pid, handle)
    assert process.wait(timeout=5) == -signal.SIGKILL
    end = time.monotonic() + 5
    while alive(descendants) and time.monotonic() < end:
        time.sleep(0.01)
    assert not alive(descendants)


ORPHANS = """
import os, subprocess, sys
from governor.processes import kill_tree
mark = kill_tree.mark_self(int(sys.argv[1]))
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import time
        time.sleep(1000)
    os._exit(0)
process = subprocess.Popen(["sleep", "1000"], start_new_session=True, env={})
print(mark, process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def orphans(mark):
    """Starts a process that dies; the one that it has left in a session of its own, without any environment."""
    process = subprocess.Popen([sys.executable, "-c", ORPHANS, str(mark)], stdout=subprocess.PIPE, text=True)
    bears, pid = map(int, process.stdout.readline().split())
    process.stdout.close()
    process.wait()
    assert bears == mark
    return os.pidfd_open(pid), pid


CHILD = kill_tree.mark_of_child(kill_tree.new_mark(), 3)


@pytest.mark.parametrize(
    "asked",
    [kill_tree.mark_of_runner(CHILD, 7), CHILD, CHILD >> 32 << 32],
    ids=["of the runner", "of the child", "of the daemon"],
)
def test_orphans_are_found_by_their_mark_and_those_above(asked):
    handle, pid = orphans(kill_tree.mark_of_runner(CHILD, 7))
    assert pid in kill_tree.marked()[CHILD]
    assert kill_tree.kill_tree(0, None, asked) == []
    assert kill_tree.is_dead(handle)
    os.close(handle)
    assert CHILD not in kill_tree.marked()
    assert kill_tree.kill_tree(0, None, asked) == []


def test_those_with_another_mark_live_on():
    daemon = CHILD >> 32 << 32
    handle, _ = orphans(kill_tree.mark_of_runner(CHILD, 7))
    others = kill_tree.mark_of_runner(CHILD, 8), kill_tree.mark_of_child(daemon, 4), kill_tree.new_mark()
    for other in (*others, kill_tree.UNMARKED):
        assert kill_tree.kill_tree(0, None, other) == []
    assert not kill_tree.is_dead(handle)
    kill_tree.kill_tree(0, None, daemon)
    assert kill_tree.is_dead(handle)
    os.close(handle)


def test_a_process_with_a_reused_pid_is_not_killed(monkeypatch):
    process = subprocess.Popen(["sleep", "600"])
    asked = []

    def wanted_once(pid):
        if pid == process.pid:
            asked.append(pid)
        return asked == [pid]

    assert kill_tree.stop_and_kill({}, wanted_once) == {}
    assert process.poll() is None
    process.kill()
    process.wait()


def test_marks_of_one_level_differ_and_stay_within_it():
    daemon = kill_tree.new_mark()
    children = {kill_tree.mark_of_child(daemon, number) for number in (0, 1, 1 << 19, (1 << 20) - 2)}
    assert len(children) == 4
    assert all(daemon < child < daemon + (1 << 32) for child in children)
    runners = {kill_tree.mark_of_runner(max(children), number) for number in (0, 1, 4094)}
    assert len(runners) == 3
    assert all(max(children) < runner < max(children) + (1 << 12) for runner in runners)
    assert 0 < daemon < 1 << 62


def test_descendants_and_ancestors(tree):
    process, _, descendants = tree
    assert kill_tree.descendants(process.pid) >= {each.pid for each in descendants}
    assert {process.pid, os.getpid(), os.getppid()} <= kill_tree.ancestors(descendants[-1].pid)


FORKING = """
import os, threading, time
def fork():
    while True:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        time.sleep(0.0002)
for _ in range(3):
    threading.Thread(target=fork).start()
"""


def test_a_tree_that_forks_all_the_time_is_killed(monkeypatch):
    honest, opened, me = os.pidfd_open, [], threading.get_ident()

    def noted(pid):
        handle = honest(pid)
        if threading.get_ident() == me:  # Ray's threads of tests before have descriptors of their own
            opened.append(handle)
        return handle

    monkeypatch.setattr(os, "pidfd_open", noted)
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", FORKING])
        root = psutil.Process(process.pid)
        while len(root.children()) < 20:
            time.sleep(0.001)
        handle = os.pidfd_open(process.pid)
        assert kill_tree.kill_tree(process.pid, handle) == []
        os.close(handle)
        process.wait()
        assert not [each for each in psutil.process_iter() if _of_forking(each)]
    assert len(opened) > 20 * 5
    assert not list(filter(_is_pidfd, opened))


def _is_pidfd(number):
    try:
        return str(Path(f"/proc/self/fd/{number}").readlink()) == "anon_inode:[pidfd]"
    except FileNotFoundError:
        return False


def _of_forking(process):
    try:
        return process.ppid() in (1, os.getpid()) and FORKING in process.cmdline()
    except psutil.Error:
        return False
