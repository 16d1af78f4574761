"""Ray dies during a run: its driver ends with the reason, another head starts, and no task runs twice."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from governor.processes.readiness import readable
from tests.support.living import lives

pytestmark = [pytest.mark.system, pytest.mark.ray]

SECONDS = 10.0
"""Seconds from a kill to the end of the conductor, with most of them for a busy machine. A frozen part has a deadline of 10 s
and is checked each 2.5 s.
"""


def marks(folder):
    """Starts by task: each start has written one mark."""
    return {path.stem: path.read_text() for path in Path(folder).glob("*.starts")}


def open_pipe(path):
    """Opens the reading end; a writer need not exist yet."""
    os.mkfifo(path)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "fate", "seconds"),
    [
        ("raylet", "kill", SECONDS),
        pytest.param("gcs_server", "kill", SECONDS, marks=pytest.mark.long),
        pytest.param("raylet", "suspend", SECONDS + 12.5, marks=pytest.mark.long),
    ],
)
async def test_a_lost_part_of_ray_costs_one_conductor_and_no_finished_task(instance, part, fate, seconds):
    flag = instance.folder / "healed"
    slow = {"flag": str(flag), "how": "hang"}
    hangs = open_pipe(f"{flag}.hangs")
    tasks = [
        {"id": "first", "call": "user_code:once"},
        {"id": "slow", "call": "user_code:heal", "args": slow, "repeat": 2, "depends_on": ["first"]},
        {"id": "last", "call": "user_code:once", "depends_on": ["slow"]},
    ]
    async with instance.serve() as tree:
        uid = await tree.executor.submit(
            {"name": "t", "phases": [{"name": "p", "tasks": tasks}]}, folder=instance.folder
        )
        hung = await tree.until(uid, "task.started", task="slow", run=1)
        await readable(hangs)
        os.close(hangs)
        ray = (await tree.executor.status()).ray
        before = tree.daemon.children(recursive=True)
        [victim] = [process for process in before if process.name() == part]
        flag.touch()
        getattr(victim, fate)()
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        [failed] = [e.data for e in events if e.kind == "conductor.failed"]
        assert failed["reason"].startswith("Ray is lost: "), failed
        [exited] = [e for e in events if e.kind == "conductor.exited" and not e.data["expected"]]
        assert exited.data["conductor"] == "tasks"
        assert exited.at - hung.at < seconds
        ready = [e.data["detail"]["ray"] for e in events if e.kind == "conductor.ready"]
        assert len(set(ready)) == 2, "it came back to the same head"
        assert (await tree.executor.status()).ray not in (ray, "not started")
        assert marks(result.folder) == {"first": "x", "slow": "xxx", "last": "x"}
        ended = Counter(
            (e.data["record"]["task"], e.data["record"]["run"]) for e in events if e.kind == "task.ended"
        )
        assert ended == Counter([("first", 0), ("slow", 0), ("slow", 1), ("last", 0)])
        assert not lives(hung.data["pid"])
        assert not victim.is_running()
        assert "conductor.close_too_slow" not in (instance.folder / "log").read_text()


def part_of(tree, name):
    [part] = [each for each in tree.daemon.children(recursive=True) if each.name() == name]
    return part


@pytest.mark.long
async def test_the_start_of_a_run_finds_a_frozen_part_of_ray(instance):
    tasks = [{"id": "once", "call": "user_code:once"}]
    run = {"name": "t", "restart": {"conductors": 0}, "phases": [{"name": "p", "tasks": tasks}]}
    async with instance.serve() as tree:
        await tree.end(await tree.executor.submit(run, folder=instance.folder))
        frozen = part_of(tree, "gcs_server")
        frozen.suspend()
        events, result = await tree.end(await tree.executor.submit(run, folder=instance.folder))
        assert result.outcome == "finished", result.reason
        assert [e.data for e in events if e.kind == "conductor.exited" and not e.data["expected"]] == []
        assert not frozen.is_running()
