"""Tasks that raise, hang, exit or are killed: each failure has its own outcome, other tasks continue, the run ends by its policy."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.living import lives

pytestmark = [pytest.mark.system, pytest.mark.ray]

TASKS = [
    {"id": "good", "call": "user_code:once"},
    {"id": "spin", "call": "user_code:spin", "timeout": 0.5},
    {"id": "leave", "call": "user_code:leave"},
    {"id": "vanish", "call": "user_code:vanish"},
    {"id": "killed", "call": "user_code:kill_myself"},
    {"id": "odd", "call": "user_code:unserialisable"},
    {"id": "boom", "call": "user_code:boom", "retries": 1},
    {"id": "after", "call": "user_code:once", "depends_on": ["boom"]},
    {"id": "later", "call": "user_code:once", "depends_on": ["after"]},
    {"id": "last", "call": "user_code:once", "depends_on": ["good"]},
]


async def test_each_kind_of_task_failure_has_its_own_outcome_and_the_run_ends_by_its_policy(instance):
    async with instance.serve("--slots", "2") as tree:
        run = {"name": "bad", "phases": [{"name": "p", "tasks": TASKS, "on_failure": "continue"}]}
        tolerant = await tree.executor.submit(run, folder=instance.folder)
        _, result = await tree.end(tolerant)
        assert result.outcome == "finished"
        records = {record.task: record for record in result.phases[0].tasks}
        assert {task: record.outcome for task, record in records.items()} == {
            "good": "succeeded",
            "spin": "timed_out",
            "leave": "failed",
            "vanish": "crashed",
            "killed": "crashed",
            "odd": "failed",
            "boom": "failed",
            "after": "upstream_failed",
            "later": "upstream_failed",
            "last": "succeeded",
        }
        assert records["boom"].attempts == 2
        assert "no such luck" in records["boom"].error
        assert records["later"].cause == "boom"
        assert "serialised" in records["odd"].error
        strict = {"name": "bad", "phases": [{"name": "p", "tasks": TASKS[6:8]}]}
        _, result = await tree.end(await tree.executor.submit(strict, folder=instance.folder))
        assert result.outcome == "failed"
        assert result.reason.startswith(
            'phase p: 1 ended badly, beyond failures.at_most of 0, first task "boom" run 0 failed'
        )


@pytest.mark.long
async def test_a_killed_task_conductor_is_replaced_and_no_task_runs_twice(instance):
    tasks = [
        {"id": "first", "call": "user_code:once"},
        {"id": "nap", "call": "user_code:nap", "args": {"seconds": 1.0}, "depends_on": ["first"]},
        {"id": "last", "call": "user_code:once", "depends_on": ["nap"]},
    ]
    async with instance.serve() as tree:
        uid = await tree.executor.submit(
            {"name": "t", "phases": [{"name": "p", "tasks": tasks}]}, folder=instance.folder
        )
        nap = await tree.until(uid, "task.started", task="nap")
        os.kill(await tree.pid_of(uid, "tasks"), signal.SIGKILL)
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        assert [record.outcome for record in result.phases[0].tasks] == ["succeeded"] * 3
        for task in ("first", "last"):
            assert (Path(result.folder) / f"{task}.starts").read_text() == "x"
        assert not lives(nap.data["pid"])
        assert [e.data["record"]["task"] for e in events if e.kind == "task.ended"] == [
            "first",
            "nap",
            "last",
        ]
