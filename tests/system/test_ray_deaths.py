"""Ray that dies under a run: its driver ends with the reason, another head comes up, and nothing is done twice."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import psutil
import pytest

from governor.conductors.readiness import readable

pytestmark = [pytest.mark.system, pytest.mark.ray]

SECONDS = 10.0
"""From a kill to the end of the conductor; most of it is the machine's, which may be busy."""


def marks(folder):
    """Those that each task has left, one for each start."""
    return {path.stem: path.read_text() for path in Path(folder).glob("*.starts")}


def open_pipe(path):
    """Its end to read from; there may be no writer yet."""
    os.mkfifo(path)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


@pytest.mark.parametrize("part", ["gcs_server", "raylet"])
async def test_a_part_of_ray_killed_under_a_run_costs_a_conductor_and_nothing_that_was_done(house, part):
    flag = house.folder / "healed"
    slow = {"flag": str(flag), "how": "hang"}
    hangs = open_pipe(f"{flag}.hangs")
    tasks = [
        {"id": "first", "call": "user_code:once"},
        {"id": "slow", "call": "user_code:heal", "args": slow, "repeat": 2, "depends_on": ["first"]},
        {"id": "last", "call": "user_code:once", "depends_on": ["slow"]},
    ]
    async with house.serve() as tree:
        uid = await tree.executor.submit(
            {"name": "t", "phases": [{"name": "p", "tasks": tasks}]}, folder=house.folder
        )
        hung = await tree.until(uid, "task.started", task="slow", run=1)
        await readable(hangs)
        os.close(hangs)
        ray = (await tree.executor.status()).ray
        before = tree.daemon.children(recursive=True)
        [victim] = [process for process in before if process.name() == part]
        flag.touch()
        victim.kill()
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        [said] = [e.data for e in events if e.kind == "conductor.failed"]
        assert said["reason"].startswith("Ray is lost: "), said
        [exited] = [e for e in events if e.kind == "conductor.exited" and not e.data["expected"]]
        assert exited.data["conductor"] == "tasks"
        assert exited.at - hung.at < SECONDS
        ready = [e.data["detail"]["ray"] for e in events if e.kind == "conductor.ready"]
        assert len(set(ready)) == 2, "it came back to the same head"
        assert (await tree.executor.status()).ray not in (ray, "not started")
        assert marks(result.folder) == {"first": "x", "slow": "xxx", "last": "x"}
        ended = Counter(
            (e.data["record"]["task"], e.data["record"]["run"]) for e in events if e.kind == "task.ended"
        )
        assert ended == Counter([("first", 0), ("slow", 0), ("slow", 1), ("last", 0)])
        assert not psutil.pid_exists(hung.data["pid"])
