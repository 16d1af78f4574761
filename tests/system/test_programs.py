"""Programs as tasks in whole process trees: whatever is killed, they and all that they have started are dead, and the task goes
on as its retries say.
"""

from __future__ import annotations

import asyncio
import os
import signal

import psutil
import pytest

from governor.processes.readiness import readable
from tests.support.living import gone, lives

pytestmark = [pytest.mark.system, pytest.mark.ray]

STAY = """\
#!/bin/sh
# Ignores SIGTERM, and has a child in a session of its own that does so, too.
trap '' TERM
setsid sh -c 'echo $0 $$ > begun; sleep 1000; :' $$ &
echo attempt $GOVERNOR_ATTEMPT
while :; do sleep 1000; done
"""


class Programs:
    """The programs that have begun, each with the child that it has detached."""

    def __init__(self, folder):
        (folder / "stay.sh").write_text(STAY)
        os.mkfifo(folder / "begun")
        self._pipe = os.open(folder / "begun", os.O_RDWR | os.O_NONBLOCK)

    async def begun(self):
        async with asyncio.timeout(60):
            await readable(self._pipe)
        return [int(pid) for pid in os.read(self._pipe, 4096).split()]

    def close(self):
        os.close(self._pipe)


@pytest.fixture
def programs(instance):
    made = Programs(instance.folder)
    yield made
    made.close()


def run_of(**task):
    tasks = [{"id": "stay", "command": ["sh", "stay.sh"], **task}]
    return {"name": "programs", "phases": [{"name": "p", "tasks": tasks, "grace": 0.5}]}


async def test_a_kill_of_program_or_runner_leaves_nothing_of_it_and_is_tried_again(instance, programs):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run_of(retries=2, timeout=3600), folder=instance.folder)
        program, child = await programs.begun()
        assert os.getsid(program) == program
        assert os.getsid(child) == child
        os.kill(program, signal.SIGKILL)
        ended = await tree.until(uid, "task.attempt_ended")
        assert (ended.data["outcome"], ended.data["error"]) == ("crashed", "killed by SIGKILL")
        second, second_child = await programs.begun()
        assert not lives(child)
        runner = psutil.Process(second).ppid()
        os.kill(runner, signal.SIGKILL)
        third = await programs.begun()
        assert not any(map(lives, (runner, second, second_child)))
        await tree.executor.abort(uid)
        _, result = await tree.end(uid)
        assert result.outcome == "aborted"
        assert not any(map(lives, third))


async def test_at_its_deadline_a_program_that_ignores_sigterm_is_killed(instance, programs):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run_of(timeout=1), folder=instance.folder)
        pids = await programs.begun()
        events, _ = await tree.end(uid)
        [ended] = [event.data["record"] for event in events if event.kind == "task.ended"]
        assert ended["outcome"] == "timed_out"
        assert ended["seconds"] < 3
        assert not any(map(lives, pids))


@pytest.mark.long
async def test_a_hard_pause_and_the_death_of_the_daemon_end_it_and_it_begins_again(instance, programs):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run_of(), folder=instance.folder)
        first = await programs.begun()
        await tree.executor.pause(uid, hard=True)
        for pid in first:
            await gone(pid)
        await tree.until(uid, "run.interrupted")
    async with instance.serve() as tree:
        await tree.executor.continue_(uid)
        second = await programs.begun()
        tree.daemon.kill()
        for pid in second:
            await gone(pid)
        await tree.gone()
    async with instance.serve() as tree:
        third = await programs.begun()
        await tree.executor.abort(uid)
        await tree.end(uid)
        assert not any(map(lives, third))
