"""Processes of an earlier invocation are identified by what they inherited, and killed with all below them."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from governor.processes import kill_tree, leftovers
from governor.processes.identity import ProcessIdentity
from governor.processes.readiness import is_readable

INSTANCE = secrets.token_hex(8)
"""Of this process alone: the tests may run several times at once."""
SLEEP = ["sleep", "600"]
PRINT_PID = "import os, subprocess as s, sys; p = s.Popen(['sleep', '600'], stdout=s.DEVNULL, start_new_session=True, env={}); print(p.pid, flush=True); sys.stdin.read()"


@pytest.fixture
def begin():
    """Starts a process with this value of the instance's variable."""
    started = []

    def start(value, *, command=SLEEP, instance=INSTANCE, **more):
        environ = {**os.environ, **({} if value is None else {leftovers.VARIABLE + instance: value})}
        process = subprocess.Popen(command, env=environ, start_new_session=True, **more)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def own():
    me = ProcessIdentity.of(os.getpid())
    return f"{me.pid}.{me.ticks}"


def dead(*processes):
    return [process.wait(timeout=0) == -9 for process in processes]


def test_only_processes_of_another_invocation_are_killed(begin):
    left = [begin("1.1"), begin("77.5")]
    others = [begin(own()), begin(None), begin("1.1", instance="f" * 16)]
    killed, alive = leftovers.kill_leftovers(INSTANCE)
    assert {process.pid for process in killed} == {process.pid for process in left}
    assert "sleep 600" in str(killed[0])
    assert alive == []
    assert dead(*left) == [True, True]
    assert [process.poll() for process in others] == [None] * 3


def test_descendants_in_other_sessions_and_environments_are_killed(begin):
    parent = begin(
        "1.1", command=[sys.executable, "-c", PRINT_PID], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    handle = os.pidfd_open(int(parent.stdout.readline()))
    try:
        leftovers.kill_leftovers(INSTANCE)
        assert is_readable(handle)
    finally:
        os.close(handle)


def test_one_on_record_is_killed_without_any_mark(begin):
    process = begin(None)
    leftovers.kill_leftovers(INSTANCE, [ProcessIdentity.of(process.pid)])
    assert dead(process) == [True]


def test_one_with_a_mark_on_record_is_killed_without_any_environment(begin):
    mark = kill_tree.mark_of_child(kill_tree.new_mark(), 0)
    code = "import sys; from governor.processes import kill_tree; kill_tree.mark_self(int(sys.argv[1]));"
    code += "import subprocess; print(subprocess.Popen(['/bin/sleep', '600'], env={}, start_new_session=True, stdout=subprocess.DEVNULL).pid)"
    parent = begin(None, command=[sys.executable, "-c", code, str(mark)], stdout=subprocess.PIPE, text=True)
    handle = os.pidfd_open(int(parent.communicate(timeout=30)[0]))
    try:
        [killed], alive = leftovers.kill_leftovers(INSTANCE, marks=[mark])
        assert (killed.command, alive) == ("/bin/sleep 600", [])
        assert is_readable(handle)
    finally:
        os.close(handle)


def test_the_caller_and_its_ancestors_are_spared(begin):
    """As where a process that an earlier daemon left has started this daemon."""
    code = (
        "import sys; from governor.processes import leftovers; print(leftovers.kill_leftovers(sys.argv[1]))"
    )
    process = begin("1.1", command=[sys.executable, "-c", code, INSTANCE], stdout=subprocess.PIPE)
    assert process.communicate(timeout=30)[0] == b"([], [])\n"


def test_ancestors_on_record_are_spared(begin):
    """A parent without other children: other processes that a parent has started are killed."""
    code = (
        "import os, sys; from governor.processes import leftovers; from governor.processes.identity import ProcessIdentity as Identity; "
        "print(leftovers.kill_leftovers(sys.argv[1], [Identity.of(os.getpid()), Identity.of(os.getppid())]))"
    )
    below = shlex.join([sys.executable, "-c", code, INSTANCE])
    process = begin("1.1", command=["sh", "-c", f"{below}; echo done"], stdout=subprocess.PIPE)
    assert process.communicate(timeout=30)[0] == b"([], [])\ndone\n"


def test_a_survivor_is_returned_with_a_handle_that_shows_its_death(begin, monkeypatch):
    process = begin("1.1")
    monkeypatch.setattr(kill_tree, "KILL_SECONDS", 0.1)
    monkeypatch.setattr(kill_tree, "send", lambda handle, number: None)
    killed, [survivor] = leftovers.kill_leftovers(INSTANCE)
    assert (killed, survivor.pid) == ([], process.pid)
    assert not is_readable(survivor.handle)
    process.kill()
    assert is_readable(survivor.handle, timeout=5)
    os.close(survivor.handle)


def test_it_leaves_no_descriptor_open(begin):
    begin("1.1")
    before = len(list(Path("/proc/self/fd").iterdir()))
    leftovers.kill_leftovers(INSTANCE)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_an_instance_is_identified_by_its_folder_whatever_the_path(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to("a")
    instance = leftovers.instance_of(tmp_path / "a")
    assert len(instance) == 16
    assert leftovers.instance_of(tmp_path / "link") == instance != leftovers.instance_of(tmp_path / "b")


class TestProcessIdentity:
    def test_it_is_the_same_for_one_process_and_uses_no_wall_clock(self, begin):
        process = begin(None)
        identity = ProcessIdentity.of(process.pid)
        assert identity == ProcessIdentity.of(process.pid)
        os.close(identity.open())

    def test_a_later_process_with_the_pid_or_another_boot_does_not_match(self, begin):
        identity = ProcessIdentity.of(begin(None).pid)
        assert ProcessIdentity(pid=identity.pid, ticks=identity.ticks - 1, boot=identity.boot).open() is None
        assert ProcessIdentity(pid=identity.pid, ticks=identity.ticks, boot="another").open() is None

    def test_a_process_that_is_gone_has_none(self):
        process = subprocess.Popen(["true"])
        identity = ProcessIdentity.of(process.pid)
        process.wait()
        assert identity.open() is None
        with pytest.raises(ProcessLookupError):
            ProcessIdentity.of(process.pid)
