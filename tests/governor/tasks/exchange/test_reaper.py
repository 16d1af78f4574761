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

from governor.tasks.exchange import reaper

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
    while len(alive(family := root.children())) < 4:  # orphans are adopted, and those between them have gone
        time.sleep(0.01)
    handle = os.pidfd_open(process.pid)
    yield process, handle, alive(family)
    os.close(handle)
    for each in [*alive(family), process]:
        each.kill()
    process.wait()


def alive(processes):
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def test_all_below_it_are_dead_in_sessions_of_their_own_too(tree):
    process, handle, family = tree
    assert reaper.kill_tree(process.pid, handle) == []
    assert not alive(family)
    assert process.wait() == -signal.SIGKILL


def test_who_may_not_be_killed_is_named_and_the_others_are_dead(tree, monkeypatch):
    process, handle, family = tree
    spared = family[-1]
    honest = signal.pidfd_send_signal

    def refusing(which, number):
        if f"Pid:\t{spared.pid}\n" in Path(f"/proc/self/fdinfo/{which}").read_text():
            raise PermissionError(1, "of another user")
        honest(which, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", refusing)
    monkeypatch.setattr(reaper, "KILL_SECONDS", 1.5)  # the others die meanwhile
    assert reaper.kill_tree(process.pid, handle) == [spared.pid]
    assert alive(family) == [spared]


def test_a_root_whose_tree_cannot_be_read_dies_all_the_same(tree, monkeypatch):
    process, handle, _ = tree

    def broken(_):
        raise OSError(24, "too many open files")

    monkeypatch.setattr(reaper, "descendants", broken)
    with pytest.raises(OSError, match="too many"):
        reaper.kill_tree(process.pid, handle)
    assert process.wait(timeout=5) == -signal.SIGKILL


def test_who_cannot_be_looked_at_for_want_of_descriptors_is_not_left_standing(tree, monkeypatch):
    process, handle, family = tree
    honest, left = os.pidfd_open, iter(range(2))

    def scarce(pid):
        if next(left, None) is None:
            raise OSError(24, "too many open files")
        return honest(pid)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", scarce)
        with pytest.raises(OSError, match="too many"):
            reaper.kill_tree(process.pid, handle)
    assert process.wait(timeout=5) == -signal.SIGKILL
    end = time.monotonic() + 5
    while alive(family) and time.monotonic() < end:
        time.sleep(0.01)
    assert not alive(family)


ORPHANS = """
import os, subprocess, sys
from governor.tasks.exchange import reaper
mark = reaper.mark()
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


def test_what_a_dead_process_has_left_behind_is_found_by_its_mark():
    process = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    mark, pid = map(int, process.stdout.readline().split())
    handle = os.pidfd_open(process.pid)
    process.stdout.close()
    process.wait()
    found, _ = reaper._bearers(mark)
    assert pid in found
    assert reaper.kill_tree(process.pid, handle, mark) == []
    os.close(handle)
    assert not alive([psutil.Process(each) for each in found if psutil.pid_exists(each)])
    assert reaper.kill_tree(0, None, mark) == []
    assert os.getpid() not in found


def test_a_pid_is_one_process_only_with_its_birth(tree):
    process, _, _ = tree
    born = reaper.birth(process.pid)
    handle = reaper.open_pid(process.pid, born)
    assert handle is not None
    os.close(handle)
    assert reaper.open_pid(process.pid, born - 1) is None
    assert reaper.open_pid(process.pid, born + 1) is None
    process.kill()
    process.wait()
    assert reaper.open_pid(process.pid, born) is None
    with pytest.raises(OSError, match="No such"):
        reaper.birth(process.pid)


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


def test_who_forks_all_the_time_leaves_nobody(monkeypatch):
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
        assert reaper.kill_tree(process.pid, handle) == []
        os.close(handle)
        process.wait()
        left = [
            each for each in psutil.process_iter() if each.ppid() in (1, os.getpid()) and _of_forking(each)
        ]
        assert not left
    assert len(opened) > 20 * 5
    assert not list(filter(_is_pidfd, opened))


def _is_pidfd(number):
    try:
        return str(Path(f"/proc/self/fd/{number}").readlink()) == "anon_inode:[pidfd]"
    except FileNotFoundError:
        return False


def _of_forking(process):
    try:
        return FORKING in process.cmdline()
    except psutil.Error:
        return False
