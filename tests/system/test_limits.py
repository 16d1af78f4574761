"""Runs that exceed a limit (memory, disk, attempts), in whole process trees. No process is left (`Tree.gone`)."""

from __future__ import annotations

import re
import signal

import pytest

MIB = 1024**2
pytestmark = pytest.mark.system


def tasks(*calls, **limits):
    made = [{"id": f"t{number}", **call} for number, call in enumerate(calls)]
    return {"name": "tasks", "limits": limits, "phases": [{"name": "p", "tasks": made}]}


def exceeded(events, result, limit, allowed, *, phase):
    """The value that was reached; asserts that the run failed because of this limit."""
    [data] = [event.data for event in events if event.kind == "limit.exceeded"]
    assert (result.outcome, data["limit"]) == ("failed", limit)
    assert re.fullmatch(
        rf"limit {limit} of {allowed} exceeded in phase {phase}: [0-9.]+( MiB)?", result.reason
    )
    assert data["reached"] > data["value"]
    return data["reached"]


@pytest.mark.parametrize("agent", [pytest.param("Hoarder", marks=pytest.mark.long), "DetachedHoarder"])
async def test_an_agent_that_exceeds_the_memory_limit_ends_its_run(instance, walk, agent):
    made = {
        **walk(entry=f"user_code:{agent}", episodes=1_000_000),
        "limits": {"memory": "300MiB", "disk": "1GiB"},
    }
    async with instance.serve() as tree:
        uid = await tree.executor.submit(made, folder=instance.folder)
        events, result = await tree.end(uid)
        assert 300 * MIB < exceeded(events, result, "memory", "300 MiB", phase="train") < 900 * MIB
        [status] = (await tree.executor.status(uid)).runs
        assert status.limits == (), "it is over"


@pytest.mark.long
@pytest.mark.ray
async def test_tasks_that_exceed_the_memory_or_disk_limit_end_their_run(instance):
    async with instance.serve() as tree:
        for limits, call, allowed in (
            ({"memory": "600MiB"}, {"call": "user_code:hoard", "args": {"mebibytes": 600}}, "600 MiB"),
            ({"disk": "20MiB"}, {"call": "user_code:litter", "args": {"mebibytes": 30}}, "20 MiB"),
        ):
            [limit] = limits
            uid = await tree.executor.submit(tasks(call, **limits), folder=instance.folder)
            events, result = await tree.end(uid)
            exceeded(events, result, limit, allowed, phase="p")


@pytest.mark.long
@pytest.mark.ray
async def test_attempts_are_counted_across_a_restart_of_the_daemon(instance):
    once, nap = {"call": "user_code:once"}, {"call": "user_code:nap", "args": {"seconds": 600}}
    made = tasks(once, once, {**nap, "depends_on": ["t0", "t1"]}, tasks=3)
    async with instance.serve() as tree:
        uid = await tree.executor.submit(made, folder=instance.folder)
        await tree.until(uid, "task.started", task="t2")
        [status] = (await tree.executor.status(uid)).runs
        assert [(use.limit, use.allowed, use.used) for use in status.limits] == [("tasks", 3, 3)]
        lines = [line.what for line in (await tree.executor.explain(uid)).lines]
        assert "limits: tasks 3 of 3" in lines
        tree.daemon.send_signal(signal.SIGKILL)
        await tree.gone()
    async with instance.serve() as tree:
        events, result = await tree.end(uid)
        assert exceeded(events, result, "tasks", "3", phase="p") == 4
        again = await tree.executor.resume(uid)
        await tree.until(again, "task.started", task="t2")
        [status] = (await tree.executor.status(again)).runs
        assert [use.used for use in status.limits] == [1], "what is inherited was paid for"
        await tree.executor.abort(again)
        await tree.end(again)
