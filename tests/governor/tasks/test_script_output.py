"""What tasks print in a script of a user, who has called `ray.init`: shown as that of plain Ray, and whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray


@pytest.fixture
def folder():
    """With a short name: Ray puts sockets there."""
    made = tempfile.mkdtemp(prefix="gr-")
    yield Path(made)
    shutil.rmtree(made, ignore_errors=True)


SCRIPT = """
import asyncio, os, sys, ray
from governor.tasks import Scheduler, SchedulerConfig, Task, execute_task_graph

class Exp:
    def __init__(self, exp_id, deed): self.exp_id, self.deed = exp_id, deed
    def run(self):
        print("graph", self.exp_id)
        print("error", self.exp_id, file=sys.stderr)
        if self.deed == "many":
            for number in range(20_000): print("line", self.exp_id, number)
        if self.deed == "die":
            os.write(1, b"its last words")
            os.kill(os.getpid(), 9)
        print("last", self.exp_id, end="")

def scheduled(number, context):
    os.system(f"echo child {number}")
    context.log.info("told %d", number)

async def schedule():
    async with Scheduler(SchedulerConfig(runner_per_model=2, max_retry_times=0)) as scheduler:
        scheduler.schedule([Task(scheduled, {"number": number}) for number in range(3)], batch_id=1)
        await scheduler.get_statuses(1)

ray.init(num_cpus=2, include_dashboard=False, _temp_dir=sys.argv[1], log_to_driver=sys.argv[2] == "shown")
ray.get(ray.remote(lambda: print("plain")).remote())
execute_task_graph([Exp("a", "many"), Exp("b", "many")])
print("returned", flush=True)
execute_task_graph([Exp("c", ""), Exp("dies", "die")])
print("returned", flush=True)
asyncio.run(schedule())
"""


def play(folder, shown):
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path.cwd()),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_COLOR_PREFIX": "0",
    }
    script = folder / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, str(folder), shown],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout, done.stderr


def test_what_tasks_print_is_shown_with_their_names_before_the_call_returns(folder):
    out, err = play(folder, "shown")
    first, second, third = out.split("returned\n")
    found = Counter(re.findall(r"^\(([ab]) pid=(\d+)\) (graph|last|line) [ab]( \d+)?$", first, re.MULTILINE))
    assert len(found) == 2 * 20_002, "each line, with the name of its task, and the last ones"
    assert set(found.values()) == {1}
    assert sorted(re.findall(r"^\((\w+) pid=\d+\) (.*)$", second, re.MULTILINE)) == [
        ("c", "graph c"),
        ("c", "last c"),
        ("dies", "graph dies"),
        ("dies", "its last words"),
    ]
    named = sorted(re.findall(r"^\((\S+) pid=\d+\) (.*)$", third, re.MULTILINE))
    assert named == [(f"scheduled[{number}]", f"child {number}") for number in range(3)]
    assert len(re.findall(r"^\((\w+) pid=\d+\) error \1$", err, re.MULTILINE)) == 4
    assert len(re.findall(r"^\(scheduled\[(\d)\] pid=\d+\) INFO: told \1$", err, re.MULTILINE)) == 3


def test_who_does_not_want_ray_to_show_it_finds_it_in_rays_own_files(folder):
    out, err = play(folder, "hidden")
    assert not re.search("graph|line|child|plain", out)
    assert not re.search("error [abcd]|told", err)
    kept = "".join(path.read_text() for path in folder.glob("session_2*/logs/worker-*.out"))
    assert "graph a" in kept
    assert "child 2" in kept
