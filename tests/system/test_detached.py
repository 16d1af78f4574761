"""What user code has started in sessions of its own dies with its conductor: before the next one starts, before its run
has ended, and with the daemon however that ends. With an environment of its own too, and none.
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
"""From the death of the guards to that of everything."""
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
    """The processes that user code has started, by pidfds: two by each that starts some, in this order."""

    def __init__(self, folder):
        self.folder = folder
        path = folder / "detached"
        os.mkfifo(path)
        # Kept open to write as well: else it ends with its first writer.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._told = b""
        self.pids = []
        self.handles = []

    async def until(self, count):
        """Returns when so many were started."""
        async with asyncio.timeout(60):
            while len(self.handles) < count:
                await readable(self._pipe)
                *lines, self._told = (self._told + os.read(self._pipe, 4096)).split(b"\n")
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
    """The conductor that has a successor."""
    [described] = (await tree.executor.status(uid)).runs
    name = victim if "." in victim else "environment.world" if victim == "forkserver" else "tasks"
    conductor = next(each for each in described.conductors if each.name.startswith(name))
    pid = psutil.Process(conductor.pid).ppid() if victim == "forkserver" else conductor.pid
    os.kill(pid, signal.SIGKILL)
    return conductor


async def begun(tree, detached, wanted, count, *, restarts=0):
    """The uid of a run whose user code has started so many."""
    wanted = {"name": "d", "restart": {"conductors": restarts}, **wanted}
    uid = await tree.executor.submit(wanted, folder=detached.folder)
    await detached.until(count)
    return uid


@pytest.mark.parametrize(("victim", "wanted", "count"), VICTIMS)
async def test_they_are_dead_before_the_successor_of_a_killed_conductor_is_ready(
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
async def test_they_are_dead_before_the_run_of_a_killed_conductor_has_ended(
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
async def test_status_shows_them_and_they_are_dead_when_the_run_was_aborted(
    instance, detached, wanted, count
):
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
async def test_nothing_outlives_the_guards_when_they_are_killed_together(
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
            for each in together:  # else the first to die would have the next one sweep
                each.suspend()
            for each in together:
                each.kill()
            await tree.process.wait()
            assert await asyncio.to_thread(alive, within=SECONDS) == []
            assert all(detached.dead())


async def test_where_no_process_can_be_marked_the_log_says_so_once_and_status_works(instance, walk):
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
async def test_in_a_delegated_cgroup_they_are_found_without_any_mark(
    instance, detached, wanted, victim, count
):
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
async def test_in_a_delegated_cgroup_no_group_outlives_the_guards(instance, detached, daemon_too):
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
            for each in together:
                each.kill()
            await tree.process.wait()
            assert await asyncio.to_thread(delegated_cgroup.emptied, folder, seconds=SECONDS) == []
            assert all(detached.dead())


def _started_in(folder, arguments, *more):
    """The command, by a shell that has gone to this cgroup."""
    go = 'echo 0 > "$0/cgroup.procs" && exec "$@"'
    return ["/bin/sh", "-c", go, str(folder), *arguments(*more)]
