"""Users of the engine side by side in one process: they share its connection to Ray, and the last one ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
USER_CODE = ROOT / "tests/governor/tasks/user_code"

BEGIN = """
import asyncio, os, sys, threading
import psutil
from governor.tasks import Scheduler, SchedulerConfig, Task, execute_task_graph

def config(**fields):
    return SchedulerConfig(runner_per_model=1, num_cpus=1, import_path=[sys.argv[1]], **fields)

async def works(scheduler, batch):
    scheduler.schedule([Task("deeds:nothing")], batch)
    (status,) = await scheduler.get_statuses(batch)
    assert status.ok, status.message

def nothing_is_left():
    import ray
    assert not ray.is_initialized()
    left = [each.name for each in threading.enumerate() if each.name.startswith("tasks.")]
    assert not left, left
    assert not psutil.Process().children(recursive=True)
"""

SCHEDULERS = """
async def main():
    first, second, third = Scheduler(config()), Scheduler(config()), Scheduler(config())
    await asyncio.gather(first.start(), second.start())
    await asyncio.gather(works(first, 1), works(second, 1))
    await first.stop()
    await works(second, 2)
    await third.start()
    await second.stop()
    await works(third, 1)
    other = Scheduler(config(address="127.0.0.1:1"))
    try:
        await other.start()
    except Exception as error:
        assert "cannot go to 127.0.0.1:1 as well" in str(error), error
    await works(third, 2)
    await third.stop()
    nothing_is_left()
    late = Scheduler(config(address="127.0.0.1:1"))
    try:
        await late.start()
    except Exception as error:
        assert "no Ray at 127.0.0.1:1" in str(error), error
    nothing_is_left()
    starting = asyncio.create_task(late.start())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    nothing_is_left()

asyncio.run(main())
"""

THREADS = """
class Experiment:
    depends_on = ()
    def __init__(self, exp_id):
        self.exp_id = exp_id
    def run(self):
        return self.exp_id

def graph(number):
    names = [f"{number}-{index}" for index in range(3)]
    found[number] = execute_task_graph([Experiment(name) for name in names]) == {name: name for name in names}

async def main():
    import ray
    threads = [threading.Thread(target=graph, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    async with Scheduler(config()) as scheduler:
        await works(scheduler, 1)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        await works(scheduler, 2)
        assert found == {0: True, 1: True}, found
        ray.shutdown()  # by somebody else: the next one does not suffer from it, nor from the end of the first
        async with Scheduler(config()) as other:
            await scheduler.stop()
            await works(other, 1)
    nothing_is_left()

found = {}
asyncio.run(main())
"""

CRASH = """
import ray
from pathlib import Path

def dead(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True

async def main(note):
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    async with Scheduler(config()) as scheduler:
        scheduler.schedule([Task("runner_deeds:leave_behind", args={"note": note})], 1)
        (status,) = await scheduler.get_statuses(1)
        assert "crashed" in status.message
        left = [int(pid) for pid in Path(note).read_text().split()]
        assert len(left) == 2
        assert all(map(dead, left)), left
    assert ray.is_initialized()

asyncio.run(main(sys.argv[2]))
"""


@pytest.mark.long
@pytest.mark.ray
def test_each_in_a_process_of_its_own(tmp_path):
    """`CRASH` is on a Ray of the user's own, whose raylet does not look after what its workers leave behind. All at once,
    since they mostly wait.
    """
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + script, str(USER_CODE), str(tmp_path / "note")],
            env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for script in (SCHEDULERS, THREADS, CRASH)
    ]
    try:
        told = [program.communicate(timeout=120)[1] for program in programs]
    finally:
        for program in programs:
            program.kill()
    failed = [said for program, said in zip(programs, told, strict=True) if program.returncode]
    assert not failed, "\n\n".join(said[-3000:] for said in failed)
