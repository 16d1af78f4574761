"""Processes of an earlier invocation are known by what they inherited, killed with all below them, and seen dead."""

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

HOUSE = secrets.token_hex(8)
"""Of this process alone: the tests may run several times side by side."""
SLEEP = ["sleep", "600"]
TELL = "import os, subprocess as s, sys; p = s.Popen(['sleep', '600'], stdout=s.DEVNULL, start_new_session=True, env={}); print(p.pid, flush=True); sys.stdin.read()"


@pytest.fixture
def begin():
    """Starts a process with this value of the house's variable."""
    started = []

    def start(value, *, command=SLEEP, house=HOUSE, **more):
        environ = {**os.environ, **({} if value is None else {leftovers.VARIABLE + house: value})}
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


def test_those_of_another_invocation_are_killed_and_nobody_else(begin):
    left = [begin("1.1"), begin("77.5")]
    others = [begin(own()), begin(None), begin("1.1", house="f" * 16)]
    killed, alive = leftovers.kill_left_over(HOUSE)
    assert {process.pid for process in killed} == {process.pid for process in left}
    assert "sleep 600" in str(killed[0])
    assert alive == []
    assert dead(*left) == [True, True]
    assert [process.poll() for process in others] == [None] * 3


def test_what_is_below_them_dies_too_also_in_a_session_and_with_an_environment_of_its_own(begin):
    parent = begin("1.1", command=[sys.executable, "-c", TELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    handle = os.pidfd_open(int(parent.stdout.readline()))
    try:
        leftovers.kill_left_over(HOUSE)
        assert is_readable(handle)
    finally:
        os.close(handle)


def test_one_on_record_is_killed_without_any_mark(begin):
    process = begin(None)
    leftovers.kill_left_over(HOUSE, [ProcessIdentity.of(process.pid)])
    assert dead(process) == [True]


def test_one_with_a_mark_on_record_is_killed_without_any_environment(begin):
    mark = kill_tree.mark_of_child(kill_tree.new_mark(), 0)
    code = "import sys; from governor.processes import kill_tree; kill_tree.mark_self(int(sys.argv[1]));"
    code += "import subprocess; print(subprocess.Popen(['/bin/sleep', '600'], env={}, start_new_session=True, stdout=subprocess.DEVNULL).pid)"
    parent = begin(None, command=[sys.executable, "-c", code, str(mark)], stdout=subprocess.PIPE, text=True)
    handle = os.pidfd_open(int(parent.communicate(timeout=30)[0]))
    try:
        [killed], alive = leftovers.kill_left_over(HOUSE, marks=[mark])
        assert (killed.command, alive) == ("/bin/sleep 600", [])
        assert is_readable(handle)
    finally:
        os.close(handle)


def test_nobody_kills_himself_or_those_above(begin):
    """As where a daemon was started by what an earlier one has left."""
    code = "import sys; from governor.processes import leftovers as reaping; print(reaping.kill_left_over(sys.argv[1]))"
    process = begin("1.1", command=[sys.executable, "-c", code, HOUSE], stdout=subprocess.PIPE)
    assert process.communicate(timeout=30)[0] == b"([], [])\n"


def test_nor_those_above_that_are_on_record(begin):
    """A parent with nobody else below it: what a parent has started besides is killed."""
    code = (
        "import os, sys; from governor.processes import leftovers as reaping; from governor.processes.identity import ProcessIdentity; "
        "print(reaping.kill_left_over(sys.argv[1], [Birth.of(os.getpid()), Birth.of(os.getppid())]))"
    )
    below = shlex.join([sys.executable, "-c", code, HOUSE])
    process = begin("1.1", command=["sh", "-c", f"{below}; echo done"], stdout=subprocess.PIPE)
    assert process.communicate(timeout=30)[0] == b"([], [])\ndone\n"


def test_who_lives_on_is_named_and_its_handle_tells_of_its_death(begin, monkeypatch):
    process = begin("1.1")
    monkeypatch.setattr(kill_tree, "KILL_SECONDS", 0.1)
    monkeypatch.setattr(kill_tree, "send", lambda handle, number: None)
    killed, [survivor] = leftovers.kill_left_over(HOUSE)
    assert (killed, survivor.pid) == ([], process.pid)
    assert not is_readable(survivor.handle)
    process.kill()
    assert is_readable(survivor.handle, timeout=5)
    os.close(survivor.handle)


def test_it_leaves_no_descriptor_open(begin):
    begin("1.1")
    before = len(list(Path("/proc/self/fd").iterdir()))
    leftovers.kill_left_over(HOUSE)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_house_is_its_folder_by_whatever_path(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to("a")
    house = leftovers.house_of(tmp_path / "a")
    assert len(house) == 16
    assert leftovers.house_of(tmp_path / "link") == house != leftovers.house_of(tmp_path / "b")


class TestBirth:
    def test_it_is_the_same_for_one_process_and_holds_no_wall_clock(self, begin):
        process = begin(None)
        birth = ProcessIdentity.of(process.pid)
        assert birth == ProcessIdentity.of(process.pid)
        os.close(birth.open())

    def test_a_later_owner_of_the_number_or_another_boot_is_somebody_else(self, begin):
        birth = ProcessIdentity.of(begin(None).pid)
        assert ProcessIdentity(pid=birth.pid, ticks=birth.ticks - 1, boot=birth.boot).open() is None
        assert ProcessIdentity(pid=birth.pid, ticks=birth.ticks, boot="another").open() is None

    def test_nobody_is_there_any_more(self):
        process = subprocess.Popen(["true"])
        birth = ProcessIdentity.of(process.pid)
        process.wait()
        assert birth.open() is None
        with pytest.raises(ProcessLookupError):
            ProcessIdentity.of(process.pid)
