"""The sweeper, beside a daemon that does nothing but live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from governor.processes import kill_tree
from governor.processes.readiness import is_readable

DAEMON = """
import os, resource, subprocess, sys, time
from governor.processes import prctl
from governor.processes import kill_tree
from governor.processes.sweeper import fork_sweeper
prctl.adopt_orphans()
if sys.argv[1] == "refused":
    resource.setrlimit(kill_tree.MARK_LIMIT, (1, 1))
fork_sweeper()
mark = kill_tree.own_mark()
kill_tree.mark_self(kill_tree.mark_of_child(mark, 1))
print(subprocess.Popen(["/bin/sleep", "600"], start_new_session=True, env={}).pid, flush=True)
time.sleep(600)
"""

GUARD = """
import os, signal, sys
from governor.processes import guard, prctl, sweeper
pids = []
for number in range(300):
    pids.append(os.fork())
    if not pids[-1]:
        prctl.name_process(sweeper.NAME if number == 0 else "other")
        signal.pause()
while not sweeper.is_sweeper(pids[0]):
    pass
print(*pids, flush=True)
sys.stdin.readline()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
print(guard.sweep())
"""

BESIDE = """
import psutil, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from governor.processes import sweeper
sys.executable = sys._base_executable  # which has no packages
with sweeper.beside(Path("/nonexistent")):
    [child] = psutil.Process().children()
    while child.status() != psutil.STATUS_ZOMBIE and child.name() != sweeper.NAME:
        time.sleep(0.01)
    print(child.name())
"""


def test_the_sweeper_of_a_script_needs_no_package_that_is_installed(tmp_path):
    run = [sys.executable, "-c", BESIDE, str(Path(__file__).parents[3])]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "gov-sweeper\n", done.stderr


@pytest.fixture
def begin():
    """Starts one; the pids of the daemon, of what it has detached, and of the sweeper if there is one; a pidfd of each."""
    cleared, processes = [], []

    def begin(how="marked"):
        daemon = subprocess.Popen([sys.executable, "-c", DAEMON, how], stdout=subprocess.PIPE, text=True)
        processes.append(daemon)
        detached = int(daemon.stdout.readline())
        others = [each.pid for each in psutil.Process(daemon.pid).children() if each.pid != detached]
        pids = [daemon.pid, detached, *others]
        cleared.extend(handles := [os.pidfd_open(pid) for pid in pids])
        return pids, handles

    yield begin
    for handle in cleared:
        kill_tree.send(handle, signal.SIGKILL)
        os.close(handle)
    for process in processes:
        process.wait()
        process.stdout.close()


def test_when_the_daemon_is_killed_all_that_it_has_started_is_and_the_sweeper_goes(begin):
    (daemon, *_), handles = begin()
    assert len(handles) == 3
    os.kill(daemon, signal.SIGKILL)
    assert all(is_readable(handle, timeout=10) for handle in handles)


def test_it_keeps_no_pipe_and_no_terminal_and_gets_no_signal(begin):
    (_, _, pid), _ = begin()
    sweeper = psutil.Process(pid)
    end = time.monotonic() + 10
    while sweeper.name() != "gov-sweeper" and time.monotonic() < end:  # the last that it does before it waits
        time.sleep(0.01)
    sweeper.terminate()
    assert os.getsid(pid) == pid
    assert sweeper.num_fds() == 1
    assert sweeper.is_running()


def test_without_a_mark_there_is_no_sweeper(begin):
    pids, _ = begin("refused")
    assert len(pids) == 2


def test_a_guard_kills_the_sweeper_when_all_others_are_dead():
    with subprocess.Popen(
        [sys.executable, "-c", GUARD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as guard:
        sweeper, *others = map(os.pidfd_open, map(int, guard.stdout.readline().split()))
        guard.stdin.write("\n")
        guard.stdin.flush()
        assert is_readable(sweeper, timeout=20)
        alive = sum(not is_readable(each) for each in others)
        assert guard.stdout.readline() == "set()\n"
    for handle in (sweeper, *others):
        os.close(handle)
    assert alive == 0
