"""A kill of guard, second guard or daemon leaves no process alive, including all that the tasks started. If all of them and the
sweeper die, the next start finds the processes that are left.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess

import psutil
import pytest

from governor.processes.leftovers import VARIABLE, instance_of
from governor.processes.readiness import readable
from governor.tasks.cluster import head
from tests.support.living import first_child

pytestmark = pytest.mark.system

SECONDS = 3.0
"""Seconds from a kill to the death of all processes."""


async def scattered(instance, tree, **run):
    """Submits a run whose task starts processes in other sessions, one of them with an empty environment. Returns its uid,
    and the pids of these processes and of the task.
    """
    pipe = instance.folder / "pids"
    os.mkfifo(pipe)
    task = {"id": "t", "call": "user_code:scatter", "args": {"pipe": str(pipe)}}
    uid = await tree.executor.submit(
        {"name": "s", "phases": [{"name": "p", "tasks": [task]}], **run}, folder=instance.folder
    )
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    async with asyncio.timeout(60):
        await readable(reading)
    pids = [int(pid) for pid in os.read(reading, 4096).split()]
    os.close(reading)
    return uid, pids


def sleeper(environ):
    return subprocess.Popen(["sleep", "600"], env=environ, start_new_session=True)


def logged(instance, event):
    lines = [
        json.loads(line) for line in (instance.folder / "log").read_text().splitlines() if line[:1] == "{"
    ]
    return [line for line in lines if line["event"] == event]


@pytest.mark.ray
@pytest.mark.parametrize("victim", [pytest.param("guard", marks=pytest.mark.long), "daemon"])
async def test_no_process_survives_a_kill_while_ray_runs_tasks(instance, victim):
    async with instance.serve() as tree:
        _, pids = await scattered(instance, tree)
        with tree.deaths() as alive:
            assert set(pids) <= {process.pid for process in alive(within=0)}
            os.kill(tree.process.pid if victim == "guard" else tree.daemon.pid, signal.SIGKILL)
            await tree.process.wait()
            assert await asyncio.to_thread(alive, within=SECONDS) == []


@pytest.mark.long
@pytest.mark.ray
async def test_a_process_that_survives_all_guards_is_killed_before_the_next_daemon_is_ready(instance):
    async with instance.serve() as tree:
        uid, _ = await scattered(instance, tree, resume="never")
        rays = list(head.FALLBACK_FOLDER.glob(f"ray-{instance_of(instance.folder / 's')[:8]}-*"))
        root, daemon = psutil.Process(tree.process.pid), os.pidfd_open(tree.daemon.pid)
        with tree.deaths() as alive:
            tree.sweeper.kill()
            root.suspend()  # it must not sweep
            tree.second_guard.kill()
            root.kill()
            await tree.process.wait()
            await readable(daemon)
            os.close(daemon)
            assert instance.processes() != [], "no process has survived, so this test proves nothing"
            async with instance.serve() as second:
                assert alive(within=0) == []
                assert not any(ray.exists() for ray in rays)
                events, result = await second.end(uid)
    assert logged(instance, "process.left_over")[0]["killed"]
    [interrupted] = [event for event in events if event.kind == "run.interrupted"]
    assert interrupted.data["died"]
    assert "the daemon died" in interrupted.data["reason"]
    assert result.outcome == "failed"
    assert "resume: never" in result.reason


async def test_a_start_kills_only_processes_with_the_mark_of_an_earlier_invocation(instance, walk):
    async with instance.serve() as tree:
        forkserver = first_child(tree.daemon)
        name = VARIABLE + instance_of(instance.folder / "s")
        marked = {**os.environ, name: forkserver.environ()[name]}
        tree.daemon.kill()
        await tree.process.wait()
    other = {**os.environ, VARIABLE + "0" * 16: marked[name]}
    started = [sleeper(marked), sleeper(other)]
    try:
        async with instance.serve() as tree:
            assert started[0].wait(timeout=0) == -signal.SIGKILL, "it was ready before that one was dead"
            assert started[1].poll() is None
            uid = await tree.executor.submit(walk(episodes=5), folder=instance.folder)
            _, result = await tree.end(uid)
            assert result.outcome == "finished", result.reason
    finally:
        for process in started:
            process.kill()
            process.wait()


async def test_an_unkillable_process_holds_back_the_interrupted_run_until_it_dies(instance, walk):
    async with instance.serve() as tree:
        held = await tree.executor.submit(walk(episodes=300), folder=instance.folder)
        await tree.until(held, "episode.ended")
        name = VARIABLE + instance_of(instance.folder / "s")
        marked = {**os.environ, name: first_child(tree.daemon).environ()[name]}
        tree.daemon.kill()
        await tree.process.wait()
    stays = sleeper(marked)
    immortal = "from governor.processes import kill_tree; "
    immortal += "kill_tree.KILL_SECONDS = 0.1; kill_tree.send = lambda handle, number: None; "
    begin = f"{immortal}from governor.__main__ import main; main()"
    python, _, _, *arguments = instance.arguments()
    instance.arguments = lambda *_: [python, "-c", begin, *arguments]
    try:
        async with instance.serve() as tree:
            [run] = (await tree.executor.status(held)).runs
            assert run.state == "interrupted"
            assert run.waits_for == f"the exit of pid {stays.pid} (sleep 600)"
            fresh = await tree.executor.submit(walk(episodes=5), folder=instance.folder)
            _, result = await tree.end(fresh)
            assert result.outcome == "finished", result.reason
            [run] = (await tree.executor.status(held)).runs
            assert run.state == "interrupted"
            stays.kill()
            _, result = await tree.end(held)
            assert result.outcome == "finished", result.reason
    finally:
        stays.kill()
        stays.wait()


@pytest.mark.long
async def test_a_continued_run_keeps_the_time_that_it_has_used(instance, walk):
    beat = instance.folder / "s" / "governor.beat"
    async with instance.serve() as tree:
        uid = await tree.executor.submit(
            {**walk(restarts=3), "limits": {"wall_clock": "1h"}}, folder=instance.folder
        )
        await tree.until(uid, "episode.ended")
        os.kill(await tree.pid_of(uid, "agent.walker"), signal.SIGKILL)
        again = await tree.until(uid, "conductor.ready", conductor="agent.walker", incarnation=2)
        tree.daemon.kill()
        await tree.process.wait()
    assert beat.exists()
    async with instance.serve() as tree:
        events, result = await tree.end(uid)
    assert result.outcome == "finished", result.reason
    first, second = (event for event in events if event.kind == "run.assigned")
    assert second.data["plan"]["worked"] >= again.data["at"] - first.data["at"] > 0
    assert second.data["plan"]["restarts_used"] == 1
    assert not beat.exists(), "it ended in order"
