"""Each process that the campaign's user code starts is in the register, and is found while it is alive."""

import os
import signal
import subprocess

import pytest

from governor.messages import RunEvent
from governor.processes.identity import ProcessIdentity
from tests.faults.run_processes import RUNNER, RunProcess, alive, conductors, earlier, registered
from tests.faults.user_code import CHILD


@pytest.fixture
def children():
    started = []
    yield started
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def start(tmp_path, children):
    """Starts a child as user code does, and waits until it is in the register."""

    def start():
        register = tmp_path / "register"
        child = subprocess.Popen(
            ["/bin/sh", "-c", CHILD.replace("exec", "echo; exec"), "sh", "child-of-task", register],
            env={},
            start_new_session=True,
            stdout=subprocess.PIPE,
        )
        children.append(child)
        child.stdout.readline()
        return child, registered(register)[-1]

    return start


def event(seq, kind, conductor, incarnation, identity):
    data = {"conductor": conductor, "incarnation": incarnation}
    data |= {"pid": identity.pid, "ticks": identity.ticks, "boot": identity.boot}
    return RunEvent(uid="u", seq=seq, at=0.0, kind=kind, data=data)


async def test_a_child_with_an_empty_environment_is_found_by_its_identity(start):
    child, known = start()
    assert known == RunProcess(
        what="child-of-task", identity=ProcessIdentity.of(child.pid), parent=os.getpid()
    )
    assert await alive([known], within=0.0) == [known]


async def test_a_process_that_dies_in_time_is_not_alive(start):
    (one, known), (_, other) = start(), start()
    one.send_signal(signal.SIGKILL)
    assert await alive([known, other], within=0.5) == [other]
    unrelated = RunProcess(
        what="x", identity=ProcessIdentity(pid=os.getpid(), ticks=1, boot=known.identity.boot)
    )
    assert await alive([unrelated], within=0.0) == []


def test_a_run_that_has_not_started_has_no_processes(tmp_path):
    assert registered(tmp_path / "register") == []
    assert conductors([]) == {}


def test_only_processes_of_earlier_incarnations_must_be_dead_when_the_next_is_ready(tmp_path):
    boot = ProcessIdentity.of(os.getpid()).boot
    first, second = (
        ProcessIdentity(pid=pid, ticks=ticks, boot=boot) for pid, ticks in ((11, 100), (12, 200))
    )
    lines = [("child-of-agent", 20, 11, 110), ("child-of-agent", 21, 12, 210), ("child-of-task", 22, 30, 110)]
    register = tmp_path / "register"
    register.write_text("".join(line(*each) for each in lines))
    events = [
        event(1, "conductor.started", "agent.a", 1, first),
        event(2, "conductor.started", "agent.a", 2, second),
        event(3, "conductor.ready", "agent.a", 2, second),
    ]
    assert [each.identity.pid for each in earlier(events, register, events[-1])] == [11, 20]


def test_runners_and_their_children_belong_to_the_task_conductor(tmp_path):
    boot = ProcessIdentity.of(os.getpid()).boot
    second = ProcessIdentity(pid=12, ticks=200, boot=boot)
    lines = [
        (RUNNER, 30, 5, 105),
        ("child-of-task", 22, 30, 110),
        (RUNNER, 31, 5, 205),
        ("child-of-task", 23, 31, 210),
    ]
    register = tmp_path / "register"
    register.write_text("".join(line(*each) for each in lines))
    events = [
        event(1, "conductor.started", "tasks", 2, second),
        event(2, "conductor.ready", "tasks", 2, second),
    ]
    assert [each.identity.pid for each in earlier(events, register, events[-1])] == [30, 22]


def line(what, pid, parent, ticks):
    return f"{what} {pid} (a name) S {parent} {'0 ' * 17}{ticks} 0 0;\n"
