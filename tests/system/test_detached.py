"""Processes that user code started in other sessions die with its conductor: before the next conductor starts, before the run
ends, and with the daemon, however the daemon ends. Tested with a changed environment and with an empty one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from functools import partial

import psutil
import pytest

from governor.processes.readiness import is_readable, readable
from tests.support import delegated_cgroup

pytestmark = pytest.mark.system

SECONDS = 3.0
"""Seconds from the death of the guards to the death of all other processes."""
PLAY = {
    "conductors": {
        "environments": {"world": {"entry": "user_code:Detaching"}},
        "agents": {"walker": {"entry": "user_code:DetachingWalker"}},
    },
    "phases": [
        {
            "name": "p",
            "simulate": {"environment": "world", "agents": ["walker"], "episodes": 1_000, "workers": 1},
        }
    ],
}
TASK = {"phases": [{"name": "p", "tasks": [{"id": "t", "call": "user_code:detach_and_stay"}]}]}

UNLIMITED = {"environments": {"world": {"entry": "user_code:DetachingWithoutLimits"}}}
UNLIMITED_TASK = {
    "phases": [{"name": "p", "tasks": [{"id": "t", "call": "user_code:detach_without_limits_and_stay"}]}]
}


class Detached:
    """Pidfds of the processes that user code started: two for each part that starts any, in this order."""

    def __init__(self, folder):
        self.folder = folder
        path = folder / "detached"
        os.mkfifo(path)
        # Also open for writing: else the pipe ends with its first writer.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._unread = b""
        self.pids = []
        self.handles = []

    async def until(self, count):
        """Returns when `count` processes were started."""
        async with asyncio.timeout(60):
            while len(self.handles) < count:
                await readable(self._pipe)
                *lines, self._unread = (self._unread + os.read(self._pipe, 4096)).split(b"\n")
                self.pids += [int(pid) for line in lines for pid in line.split()]
                self.handles += [os.pidfd_open(pid) for pid in self.pids[len(self.handles) :]]

    def dead(self):
        return [is_readable(handle) for handle in self.handles]

    def close(self):
        for handle in self.handles:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        os.close(self._pipe)


@pytest.fixture
def detached(instance):
    made = Detached(instance.folder)
    yield made
    made.close()


VICTIMS = [
    pytest.param("environment.world", PLAY, 4, id="environment"),
    pytest.param("agent.walker", PLAY, 4, id="agent", marks=pytest.mark.long),
    pytest.param("forkserver", PLAY, 4, id="forkserver", marks=pytest.mark.long),
    pytest.param("task", TASK, 2, id="task", marks=pytest.mark.ray),
]


async def kill(tree, uid, victim):
    """Kills `victim`. Returns the conductor that is replaced."""
    [described] = (await tree.executor.status(uid)).runs
    name = victim if "." in victim else "environment.world" if victim == "forkserver" else "tasks"
    conductor = next(each for each in described.conductors if each.name.startswith(name))
    pid = psutil.Process(conductor.pid).ppid() if victim == "forkserver" else conductor.pid
    os.kill(pid, signal.SIGKILL)
    return conductor


async def begun(tree, detached, wanted, count, *, restarts=0):
    """Submits a run. Returns its uid when its user code has started `count` processes."""
    wanted = {"name": "d", "restart": {"conductors": restarts}, **wanted}
    uid = await tree.executor.submit(wanted, folder=detached.folder)
    await detached.until(count)
    return uid


@pytest.mark.parametrize(("victim", "wanted", "count"), VICTIMS)
async def test_detached_processes_are_dead_before_the_next_conductor_is_ready(
    instance, detached, victim, wanted, count
):
    async with instance.serve() as tree:
        uid = await begun(tree, detached, wanted, count, restarts=1)
        killed = await kill(tree, uid, victim)
        await tree.until(uid, "conductor.ready", conductor=killed.name, incarnation=2)
        of_killed = {"agent": slice(2, 4), "environment": slice(2), "simulation": slice(0), "task": slice(2)}
        which = slice(4) if victim == "forkserver" else of_killed[killed.kind]
        starters = detached.dead()[which]
        assert len(starters) >= 2
        assert all(starters)
        await tree.executor.abort(uid)
        await tree.end(uid)
        assert all(detached.dead()), "those of the second life too"


@pytest.mark.long
@pytest.mark.parametrize(("victim", "wanted", "count"), VICTIMS)
async def test_detached_processes_are_dead_before_the_run_of_a_killed_conductor_ends(
    instance, detached, victim, wanted, count
):
    async with instance.serve() as tree:
        uid = await begun(tree, detached, wanted, count)
        await kill(tree, uid, victim)
        await tree.until(uid, "run.ended")
        assert all(detached.dead())


@pytest.mark.long
@pytest.mark.parametrize(
    ("wanted", "count"), [(PLAY, 4), pytest.param(TASK, 2, marks=pytest.mark.ray)], ids=["play", "task"]
)
async def test_status_lists_detached_processes_and_an_abort_kills_them(instance, detached, wanted, count):
    async with instance.serve() as tree:
        uid = await begun(tree, detached, wanted, count)
        [described] = (await tree.executor.status(uid)).runs
        shown = {pid for conductor in described.conductors for pid in conductor.started}
        assert set(detached.pids) <= shown
        assert not shown & {conductor.pid for conductor in described.conductors}
        await tree.executor.abort(uid)
        await tree.until(uid, "run.ended")
        assert all(detached.dead())


@pytest.mark.parametrize(
    "daemon_too", [False, pytest.param(True, marks=pytest.mark.long)], ids=["guards", "guards and daemon"]
)
@pytest.mark.parametrize(
    ("wanted", "count"), [(PLAY, 4), pytest.param(TASK, 2, marks=pytest.mark.ray)], ids=["play", "task"]
)
async def test_no_process_survives_when_both_guards_are_killed_together(
    instance, detached, wanted, count, daemon_too
):
    async with instance.serve() as tree:
        await begun(tree, detached, wanted, count)
        with tree.deaths() as alive:
            together = [
                psutil.Process(tree.process.pid),
                tree.second_guard,
                *([tree.daemon] if daemon_too else []),
            ]
            for each in together:  # else the death of the first makes the next one sweep
                each.suspend()
            for each in reversed(
                together
            ):  # the kernel continues a stopped group whose parent is gone: it would sweep
                each.kill()
            await tree.process.wait()
            assert await asyncio.to_thread(alive, within=SECONDS) == []
            assert all(detached.dead())


async def test_if_processes_cannot_be_marked_the_log_has_one_warning_and_status_works(instance, walk):
    begin = "import os, resource, sys; resource.setrlimit(10, (5, 5)); os.execv(sys.argv[1], sys.argv[1:])"
    arguments = instance.arguments
    instance.arguments = lambda *more: [sys.executable, "-c", begin, *arguments(*more)]
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        await tree.until(uid, "phase.started")
        [described] = (await tree.executor.status(uid)).runs
        assert len(described.conductors) == 3
        await tree.executor.abort(uid)
        await tree.end(uid)
    lines = [json.loads(line) for line in (instance.folder / "log").read_text().splitlines()]
    assert [line["level"] for line in lines if line["event"] == "process.not_marked"] == ["warning"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("wanted", "victim", "count"),
    [
        ({**PLAY, "conductors": {**PLAY["conductors"], **UNLIMITED}}, "environment.world", 2),
        pytest.param(UNLIMITED_TASK, "task", 2, marks=pytest.mark.ray),
    ],
    ids=["environment", "task"],
)
async def test_in_a_delegated_cgroup_unmarked_processes_are_found(instance, detached, wanted, victim, count):
    with delegated_cgroup.made() as folder:
        instance.arguments = partial(_started_in, folder, instance.arguments)
        async with instance.serve() as tree:
            uid = await begun(tree, detached, wanted, count, restarts=1)
            [described] = (await tree.executor.status(uid)).runs
            assert set(detached.pids[:count]) <= {
                pid for conductor in described.conductors for pid in conductor.started
            }
            killed = await kill(tree, uid, victim)
            await tree.until(uid, "conductor.ready", conductor=killed.name, incarnation=2)
            assert detached.dead()[:count] == [True] * count
            await tree.executor.abort(uid)
            await tree.end(uid)
            assert all(detached.dead())
        assert delegated_cgroup.groups(folder) == []


@pytest.mark.long
@pytest.mark.parametrize("daemon_too", [False, True], ids=["guards", "guards and daemon"])
async def test_in_a_delegated_cgroup_no_group_remains_after_the_guards_are_killed(
    instance, detached, daemon_too
):
    with delegated_cgroup.made() as folder:
        instance.arguments = partial(_started_in, folder, instance.arguments)
        async with instance.serve() as tree:
            wanted = {**PLAY, "conductors": {**PLAY["conductors"], **UNLIMITED}}
            await begun(tree, detached, wanted, 2)
            together = [
                psutil.Process(tree.process.pid),
                tree.second_guard,
                *([tree.daemon] if daemon_too else []),
            ]
            for each in together:
                each.suspend()
            for each in reversed(
                together
            ):  # the kernel continues a stopped group whose parent is gone: it would sweep
                each.kill()
            await tree.process.wait()
            assert await asyncio.to_thread(delegated_cgroup.emptied, folder, seconds=SECONDS) == []
            assert all(detached.dead())


def _started_in(folder, arguments, *more):
    """The command line of a shell that enters this cgroup and runs the command."""
    go = 'echo 0 > "$0/cgroup.procs" && exec "$@"'
    return ["/bin/sh", "-c", go, str(folder), *arguments(*more)]
