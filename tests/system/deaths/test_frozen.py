"""Processes that are alive but do not respond (SIGSTOP, user code that blocks the event loop) are replaced after
`deadlines.liveness` and not before; no other process is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter

import psutil
import pytest

pytestmark = pytest.mark.system

SILENCE = 5.0
BRIEF = 3.0
"""Seconds; no conductor may be killed for such a pause, at any phase of the heartbeat."""
EPISODES = 1000
TASKS = 40
VICTIMS = ("environment.lake", "agent.walker", "simulation", "tasks")


def patient(run, **limits):
    return {**run, "deadlines": {"liveness": SILENCE}, "limits": limits}


def graph():
    """Takes some seconds; the conductor receives task news at intervals."""
    tasks = [
        {"id": f"t{n}", "call": "user_code:once_slowly", "args": {"seconds": 0.3}, "retries": 1}
        for n in range(TASKS)
    ]
    return {"name": "graph", "phases": [{"name": "tasks", "tasks": tasks}]}


async def until_ended(tree, uid, victim, count):
    """Returns when `count` more episodes, or tasks, have ended."""
    kind = "task.ended" if victim == "tasks" else "episode.ended"
    async with asyncio.timeout(60), contextlib.aclosing(tree.executor.watch(uid)) as events:
        async for event in events:
            count -= event.kind == kind
            if not count:
                return


def deaths(events):
    return [e.data for e in events if e.kind == "conductor.exited" and not e.data["expected"]]


def assert_done_once(events, result, victim):
    assert result.outcome == "finished", result.reason
    if victim == "tasks":
        done = Counter(e.data["record"]["task"] for e in events if e.kind == "task.ended")
        assert done == Counter(f"t{n}" for n in range(TASKS))
    else:
        played = Counter(e.data["episode"]["index"] for e in events if e.kind == "episode.ended")
        assert played == Counter(range(EPISODES))


@pytest.mark.long
async def test_a_conductor_frozen_for_long_is_replaced_one_frozen_briefly_is_not(instance, walk):
    async def one(tree, victim):
        run = graph() if victim == "tasks" else walk(entry="user_code:Slow", episodes=EPISODES)
        uid = await tree.executor.submit(patient(run), folder=instance.folder)
        await until_ended(tree, uid, victim, 1)
        pid = await tree.pid_of(uid, victim)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(BRIEF)  # the fault itself
        [status] = (await tree.executor.status(uid)).runs
        os.kill(pid, signal.SIGCONT)
        await until_ended(tree, uid, victim, status.episodes_ended + status.tasks_ended + 1)
        os.kill(pid, signal.SIGSTOP)
        events, result = await tree.end(uid)
        assert_done_once(events, result, victim)
        assert [e.data for e in events if e.kind == "conductor.failed"] == []
        [silent] = [e.data for e in events if e.kind == "conductor.silent"]
        why = f"silent for {silent['seconds']:.0f} s (deadlines.liveness)"
        exits = [(each["conductor"], each["exit_code"], each["reason"]) for each in deaths(events)]
        assert exits == [(victim, -9, why)]
        assert (silent["conductor"], silent["incarnation"], silent["stopped"]) == (victim, 1, True)
        assert silent["seconds"] >= SILENCE

    async def holds(tree):
        """The agent's conductor cannot answer for longer than that, but has no deadline, so it is not killed."""
        run = patient(walk(entry="user_code:Holds", episodes=20))
        events, result = await tree.end(await tree.executor.submit(run, folder=instance.folder))
        assert result.outcome == "finished", result.reason
        assert deaths(events) == []

    async def hangs(tree):
        """The phase of this conductor's code has ended: a blocked event loop is enough for a kill."""
        run = walk(entry="user_code:Sleeps", episodes=20)
        run["conductors"]["agents"]["idle"] = {"entry": "user_code:Hangs"}
        simulate = {**run["phases"][0]["simulate"], "agents": ["idle"]}
        run["phases"] = [{"name": "before", "simulate": simulate}, *run["phases"]]
        uid = await tree.executor.submit(patient(run), folder=instance.folder)
        await tree.until(uid, "phase.started", index=1)
        (instance.folder / "hold").touch()
        silent = await tree.until(uid, "conductor.silent")
        (instance.folder / "awake").touch()
        events, result = await tree.end(uid)
        assert (silent.data["conductor"], silent.data["stopped"]) == ("agent.idle", False)
        assert result.outcome == "finished", result.reason
        assert [each["conductor"] for each in deaths(events)] == ["agent.idle"]

    async with instance.serve("--slots", str(len(VICTIMS) + 2)) as tree:
        await asyncio.gather(*(one(tree, victim) for victim in VICTIMS), holds(tree), hangs(tree))


@pytest.mark.long
async def test_a_frozen_broker_or_daemon_causes_no_kill_of_a_conductor(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(patient(walk(episodes=EPISODES)), folder=instance.folder)
        await until_ended(tree, uid, "simulation", 1)
        for victim in (tree.broker, tree.daemon):
            victim.send_signal(signal.SIGSTOP)
            await asyncio.sleep(SILENCE + 2)  # the fault itself
            with contextlib.suppress(psutil.NoSuchProcess):  # a frozen broker may have been replaced
                victim.send_signal(signal.SIGCONT)
            [status] = (await tree.executor.status(uid)).runs
            await until_ended(tree, uid, "simulation", status.episodes_ended + 1)
        events, result = await tree.end(uid)
        assert_done_once(events, result, "simulation")
        assert deaths(events) == []


@pytest.mark.long
async def test_a_run_without_progress_is_reported_and_ends_by_its_policy(instance, walk):
    """The agent sleeps in its first action until a file exists."""
    async with instance.serve("--slots", "3") as tree:
        uids = {}
        for policy in ("report", "restart", "fail"):
            run = walk(entry="user_code:Sleeps", episodes=EPISODES, restarts=30)
            run = patient(run, stall_timeout=2.0, on_stall=policy)
            uids[policy] = await tree.executor.submit(run, folder=instance.folder)
        stalled = {policy: await tree.until(uid, "run.stalled") for policy, uid in uids.items()}
        assert {each.data["waits_for"] for each in stalled.values()} == {"phase train: simulation to end"}
        [status] = (await tree.executor.status(uids["report"])).runs
        assert status.state == "running"
        assert status.waits_for.startswith("phase train: simulation to end; no progress for ")
        assert stalled["report"].at - status.stalled_since > 1.9
        events, result = await tree.end(uids["fail"])
        reason = "no progress for stall_timeout of 2 s in phase train, which waited for simulation to end"
        assert (result.outcome, result.reason) == ("failed", reason)
        (instance.folder / "awake").touch()
        replaced = {"report": set(), "restart": {"agent.walker", "environment.lake", "simulation"}}
        for policy, wanted in replaced.items():
            events, result = await tree.end(uids[policy])
            assert result.outcome == "finished", result.reason
            assert "run.moved" in [event.kind for event in events]
            assert {each["conductor"] for each in deaths(events)} == wanted


async def test_the_next_daemon_continues_the_numbers_of_incarnations(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(patient(walk(episodes=EPISODES)), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        os.kill(tree.daemon.pid, signal.SIGKILL)
        await tree.process.wait()
    async with instance.serve() as tree:
        events, result = await tree.end(uid)
        assert_done_once(events, result, "simulation")
        started = Counter(
            (e.data["conductor"], e.data["incarnation"]) for e in events if e.kind == "conductor.started"
        )
        assert set(started) == {(name, n) for name in VICTIMS[:3] for n in (1, 2)}
        assert set(started.values()) == {1}
