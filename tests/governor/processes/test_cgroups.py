"""Cgroups as a selector of `kill_tree`: of processes that have lost their mark, or fork faster than they are found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from governor.processes import cgroups, kill_tree
from tests.support.delegated_cgroup import entered, groups, made

DAEMON = kill_tree.new_mark()
CHILD = kill_tree.mark_of_child(DAEMON, 3)
RUNNER = kill_tree.mark_of_runner(CHILD, 7)
GROUPS = {
    mark: "/".join([f"governor-{DAEMON:016x}", *names])
    for mark, names in {
        DAEMON: (),
        CHILD: [f"{CHILD:016x}"],
        RUNNER: [f"{CHILD:016x}", f"{RUNNER:016x}"],
    }.items()
}
AS_THE_RUNNER = f"""
import os, resource, subprocess, sys, time
from governor.processes import kill_tree
for mark in {DAEMON}, {CHILD}, {RUNNER}:
    assert kill_tree.mark_self(mark) == kill_tree.own_mark() == mark
"""
UNLIMITED = """
import os, resource, sys, time
resource.setrlimit(10, (resource.RLIM_INFINITY,) * 2)
"""
DETACH = f"""
code = {UNLIMITED + "print(flush=True); time.sleep(600)"!r}
process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={{}}, stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
"""
SECONDS, GENERATIONS, CHAINS = 30, 100_000, 4
BOMB = f"""
print(os.getpid(), flush=True)
resource.setrlimit(10, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
end = time.monotonic() + {SECONDS}
if all(os.fork() for _ in range({CHAINS})):
    os._exit(0)
os.setsid()
for _ in range({GENERATIONS}):
    if time.monotonic() > end or os.fork():
        break
os._exit(0)
"""
"""Chains of processes, each of which forks one and ends; bounded in width, length and time."""


@pytest.fixture
def base():
    """A delegated cgroup; this process is in it."""
    with made() as folder, entered(folder):
        yield folder


def started_by_the_runner(code, *, before=""):
    """The pid that the code prints, and its pidfd; whatever has started it is dead."""
    command = [sys.executable, "-c", before + AS_THE_RUNNER + code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    handle = os.pidfd_open(pid)
    process.stdout.close()
    assert process.wait() == 0
    return pid, handle


@pytest.mark.parametrize(
    "asked", [RUNNER, CHILD, DAEMON], ids=["of the runner", "of the child", "of the daemon"]
)
def test_one_that_has_lost_its_mark_its_parent_and_its_environment_is_shown_and_killed(base, asked):
    pid, handle = started_by_the_runner(DETACH)
    assert cgroups.of_process(pid) == base / GROUPS[RUNNER]
    assert kill_tree.read_mark(pid) == kill_tree.UNMARKED
    assert pid in kill_tree.marked()[CHILD]
    assert kill_tree.kill_tree(0, None, kill_tree.mark_of_runner(CHILD, 8)) == []
    assert not kill_tree.is_dead(handle)
    assert kill_tree.kill_tree(0, None, asked) == []
    assert kill_tree.is_dead(handle)
    os.close(handle)
    assert pid not in kill_tree.marked().get(CHILD, ())
    assert GROUPS[asked] not in groups(base)
    cgroups.clear()
    assert groups(base) == []


@pytest.mark.parametrize("found", [True, False], ids=["a search finds some", "a search finds none"])
def test_a_tree_that_forks_faster_than_it_is_found_is_killed(base, monkeypatch, found):
    if not found:
        monkeypatch.setattr(cgroups, "is_in", lambda *_: False)
        monkeypatch.setattr(kill_tree, "KILL_SECONDS", 0.3)
    process = subprocess.Popen([sys.executable, "-c", AS_THE_RUNNER + BOMB], stdout=subprocess.PIPE)
    assert process.stdout.readline()
    process.stdout.close()
    process.wait()
    assert cgroups.pids(base / GROUPS[RUNNER])
    assert kill_tree.kill_tree(0, None, CHILD) == []
    assert groups(base) == [GROUPS[DAEMON]]
    assert cgroups.pids(base) == {os.getpid()}


def test_where_one_is_spared_the_others_of_its_group_are_dead(base):
    spared = f"""
handles = kill_tree.stop_and_kill({{}}, marks=[{CHILD}], spared=[os.getpid()])
assert list(handles) == [process.pid] and not kill_tree.await_deaths(handles, seconds=5)
"""
    _, handle = started_by_the_runner(DETACH + spared)
    assert kill_tree.is_dead(handle)
    os.close(handle)


def test_one_whose_limits_cannot_be_set_is_marked_by_its_group(base):
    plain = DETACH.replace("resource.setrlimit(10,", "tuple(")
    pid, handle = started_by_the_runner(plain, before="import resource; resource.setrlimit(10, (1, 1))\n")
    assert pid in kill_tree.marked()[CHILD]
    kill_tree.kill_tree(0, None, RUNNER)
    assert kill_tree.is_dead(handle)
    os.close(handle)


def test_without_a_mark_again_it_is_where_it_was_and_its_empty_group_is_gone(base):
    back = "kill_tree.mark_self(kill_tree.UNMARKED); print(os.getpid(), flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", AS_THE_RUNNER + back], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    pid = int(process.stdout.readline())
    assert cgroups.of_process(pid) == base
    assert groups(base) == []
    process.communicate()


def test_a_daemon_that_another_ones_task_has_started_is_within_the_group_of_that_task(base):
    inner = kill_tree.new_mark()
    _, handle = started_by_the_runner(f"kill_tree.mark_self({inner})\n" + DETACH)
    assert groups(base)[-1] == f"{GROUPS[RUNNER]}/governor-{inner:016x}"
    assert kill_tree.kill_tree(0, None, CHILD) == []
    assert kill_tree.is_dead(handle)
    os.close(handle)


def test_where_nothing_is_delegated_there_are_no_groups_and_marks_are_as_ever():
    with made(delegated=False) as folder, entered(folder):
        pid, handle = started_by_the_runner(DETACH.replace("resource.setrlimit(10,", "tuple("))
        assert groups(folder) == []
        assert pid in kill_tree.marked()[CHILD]
        assert kill_tree.kill_tree(0, None, CHILD) == []
        assert kill_tree.is_dead(handle)
        os.close(handle)


def test_a_child_of_no_daemon_makes_no_group(base):
    alone = f"import os; from governor.processes import kill_tree; kill_tree.mark_self({CHILD})"
    subprocess.run([sys.executable, "-c", alone], check=True)
    assert groups(base) == []


def test_memory_is_that_of_the_group_with_least_left(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    assert cgroups.memory(inner) is None
    assert cgroups.memory_limit(inner) is None
    for folder, limit, used, files in ((tmp_path, 1000, 900, 50), (inner, 500, 320, 20)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(
            f"anon 7\ninactive_file {files - 20}\nactive_file 15\nslab_reclaimable 5\n"
        )
    assert cgroups.memory(inner) == (1000, 850)
    assert cgroups.memory_limit(inner) == 500
    (tmp_path / "memory.max").write_text("max\n")
    assert cgroups.memory(inner) == (500, 300)


def test_a_kill_for_lack_of_memory_is_told_with_what_the_service_may_have(tmp_path):
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert cgroups.memory_kills(tmp_path) == 2
    assert cgroups.lack_of_memory(2, tmp_path) == ""
    assert cgroups.lack_of_memory(1, tmp_path) == "the kernel killed it for lack of memory"
    (tmp_path / "memory.max").write_text(f"{3 << 29}\n")
    (tmp_path / "memory.current").write_text("5\n")
    (tmp_path / "memory.stat").write_text("anon 7\n")
    assert cgroups.lack_of_memory(1, tmp_path).endswith("memory: all of its service may have 1.50 GiB")


def test_without_a_count_of_its_own_that_of_the_machine_counts(tmp_path):
    assert cgroups.memory_kills(tmp_path) >= 0
    assert cgroups.lack_of_memory(cgroups.memory_kills(tmp_path), tmp_path) == ""
