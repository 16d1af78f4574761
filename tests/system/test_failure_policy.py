"""What a phase bears of failures, in whole process trees, also across kills of the simulation and of the daemon."""

from __future__ import annotations

import os
import signal

import pytest

pytestmark = pytest.mark.system


def counting(walk, **phase):
    run = walk(entry="user_code:Stumbler", episodes=100_000)
    [first] = run["phases"]
    simulate = {**first["simulate"], "workers": 1, "transport": "in_process"}
    run["phases"] = [{**first, "simulate": simulate, **phase}]
    return run


async def failed_episodes(tree, uid, number):
    """Waits until so many episodes have failed."""
    failed = 0
    async for event in tree.executor.watch(uid):
        failed += event.kind == "episode.ended" and event.data["episode"]["outcome"] == "failed"
        if failed == number:
            return


async def test_a_bound_is_exact_across_kills_of_simulation_and_daemon(instance, walk):
    run = counting(walk, failures={"at_most": 400})
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run, folder=instance.folder)
        await failed_episodes(tree, uid, 20)
        os.kill(await tree.pid_of(uid, "simulation"), signal.SIGKILL)
        await failed_episodes(tree, uid, 60)
        os.kill(tree.daemon.pid, signal.SIGKILL)
        await tree.gone()
    async with instance.serve() as tree:
        _, result = await tree.end(uid)
        [phase] = result.phases
        assert (phase.end, phase.ended_by) == ("failures", "failures.at_most of 400")
        assert (phase.failed, phase.episodes["failed"]) == (401, 401)
        assert phase.failures[0].failure_kind == "user"
        start = "phase train: 401 ended badly, beyond failures.at_most of 400, first episode "
        assert result.reason.startswith(start)
        assert result.reason.endswith("(401 times)")
        page = await tree.executor.failures(uid, limit=1)
        assert page.failures[0].failure_kind == "user"


async def test_attempts_on_record_count_after_a_kill_and_the_last_ones_are_the_outcomes(instance, walk):
    run = counting(walk, failures={"at_most": "100%", "retry": 2})
    run["phases"][0]["simulate"]["episodes"] = 2000
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run, folder=instance.folder)
        await failed_episodes(tree, uid, 5)
        os.kill(tree.daemon.pid, signal.SIGKILL)
        await tree.gone()
    async with instance.serve() as tree:
        events, result = await tree.end(uid)
    assert result.outcome == "finished", result.reason
    [phase] = result.phases
    assert sum(phase.episodes.values()) == 2000
    before: dict[int, list[int]] = {}
    for event in events:
        if event.kind == "episode.attempt_ended":
            before.setdefault(event.data["index"], []).append(event.data["attempt"])
    assert all(numbers == [*range(1, len(numbers) + 1)] for numbers in before.values())
    failed = {
        e.data["episode"]["index"]
        for e in events
        if e.kind == "episode.ended" and e.data["episode"]["outcome"] == "failed"
    }
    assert len(failed) == phase.episodes["failed"]
    assert all(before[index] == [1, 2] for index in failed), "each was played three times"


@pytest.mark.ray
async def test_a_graph_ends_at_its_first_failure_and_resume_does_what_is_missing(instance):
    tasks = [
        {"id": "boom", "call": "user_code:boom"},
        {"id": "nap", "call": "user_code:nap", "args": {"seconds": 600}},
        {"id": "after", "call": "user_code:once", "depends_on": ["nap"]},
    ]
    async with instance.serve() as tree:
        uid = await tree.executor.submit(
            {"name": "t", "phases": [{"name": "p", "tasks": tasks}]}, folder=instance.folder
        )
        _, result = await tree.end(uid)
        [phase] = result.phases
        assert (result.outcome, phase.end, phase.failed) == ("failed", "failures", 1)
        assert {record.task: record.outcome for record in phase.tasks} == {
            "boom": "failed",
            "nap": "cancelled",
            "after": "cancelled",
        }
        strict = "phase p: 1 ended badly, beyond failures.at_most of 0, first task"
        assert result.reason.startswith(strict)
