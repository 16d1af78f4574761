"""Conductors that die: restarted while the run has restarts left, else the run fails with a reason of one line."""

from __future__ import annotations

import os
import signal
from collections import Counter

import psutil
import pytest

from tests.support.reasons import without_place

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    "conductor",
    [
        "environment.lake",
        pytest.param("agent.walker", marks=pytest.mark.long),
        pytest.param("simulation", marks=pytest.mark.long),
    ],
)
async def test_a_conductor_killed_during_a_phase_is_replaced_and_the_run_finishes(instance, walk, conductor):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        os.kill(await tree.pid_of(uid, conductor), signal.SIGKILL)
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        [death] = [e.data for e in events if e.kind == "conductor.exited" and not e.data["expected"]]
        assert (death["conductor"], death["exit_code"]) == (conductor, -9)
        played = Counter(e.data["episode"]["index"] for e in events if e.kind == "episode.ended")
        assert played == Counter(range(600))
        if conductor == "agent.walker":
            ready = [
                e.data for e in events if e.kind == "conductor.ready" and e.data["conductor"] == conductor
            ]
            assert [data["detail"]["learned"] for data in ready] == [False, True]


async def test_without_restarts_the_first_death_fails_the_run_with_a_reason_of_one_line(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(restarts=0), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        os.kill(await tree.pid_of(uid, "agent.walker"), signal.SIGKILL)
        _, result = await tree.end(uid)
        assert (result.outcome, result.reason) == (
            "failed",
            "conductor agent.walker was killed by SIGKILL",
        )
        assert sum(result.phases[0].episodes.values()) > 0, "what had ended is in the result"


@pytest.mark.long
async def test_the_reason_names_an_environment_in_process_that_calls_exit_and_its_episode(instance, walk):
    """Through conductors it has a process of its own: `test_environment_deaths`."""
    run = walk(restarts=0, episodes=6)
    run["conductors"]["environments"] = {"lake": {"entry": "user_code:Leaves"}}
    [phase] = run["phases"]
    run["phases"] = [{**phase, "simulate": {**phase["simulate"], "workers": 1, "transport": "in_process"}}]
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run, folder=instance.folder)
        events, result = await tree.end(uid)
    exit_call = "os._exit(3) in environment.step of episode 2"
    assert without_place(result.reason) == f"conductor simulation exited with code 3: {exit_call}"
    [failed] = [event.data for event in events if event.kind == "conductor.failed"]
    assert without_place(failed["reason"]) == exit_call
    assert "in step\n    os._exit(3)" in failed["traceback"]
    assert result.phases[0].episodes == {"terminated": 2}, "what had ended is on record"


IN_ACT = ("LeavesInAct", {}, "agent.act of episode 2")
IN_ACT_OF_TWO = ("LeavesInAct", {"vector": 2}, "agent.act of episode 3")
IN_ACT_MANY = ("LeavesInActMany", {"vector": 2}, "agent.act of episodes 2, 3")
IN_LEARN = ("LeavesInLearn", {}, "agent.learn of episode 2")
IN_LEARN_BESIDE = ("LeavesInLearn", {"max_staleness": 1}, "agent.learn of episode 2")
IN_STATE_DICT = ("LeavesInStateDict", {}, "agent.state_dict of episode 0")


@pytest.mark.parametrize(
    ("case", "transport"),
    [
        (IN_ACT, "conductors"),
        (IN_ACT_MANY, "in_process"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                (IN_ACT, "in_process"),
                (IN_ACT_OF_TWO, "conductors"),
                (IN_ACT_OF_TWO, "in_process"),
                (IN_ACT_MANY, "conductors"),
                (IN_LEARN, "conductors"),
                (IN_LEARN, "in_process"),
                (IN_LEARN_BESIDE, "conductors"),
                (IN_STATE_DICT, "conductors"),
                (IN_STATE_DICT, "in_process"),
            )
        ),
    ],
    ids=str,
)
async def test_the_reason_names_an_agent_that_calls_exit_and_its_episodes(instance, walk, case, transport):
    entry, more, place = case
    run = walk(restarts=0, episodes=6, entry=f"user_code:{entry}")
    vector = more.get("vector", 1)
    run["conductors"]["environments"] = {"lake": {"entry": "user_code:FiveSteps", "vector": vector}}
    [phase] = run["phases"]
    simulate = {**phase["simulate"], "workers": 1, "transport": transport}
    simulate |= {key: value for key, value in more.items() if key != "vector"}
    run["phases"] = [{**phase, "simulate": simulate}]
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run, folder=instance.folder)
        events, result = await tree.end(uid)
    conductor = "simulation" if transport == "in_process" else "agent.walker"
    exit_call = f"os._exit(3) in {place}"
    assert without_place(result.reason) == f"conductor {conductor} exited with code 3: {exit_call}"
    [failed] = [event.data for event in events if event.kind == "conductor.failed"]
    assert without_place(failed["reason"]) == exit_call
    method = place.split()[0].removeprefix("agent.")
    assert f"in {method}\n" in failed["traceback"]
    assert "os._exit(3)" in failed["traceback"]
    if transport == "in_process":
        ended = 0 if case is IN_STATE_DICT else 2
        assert sum(result.phases[0].episodes.values()) == ended, "what had ended is on record"


async def test_a_conductor_that_always_dies_uses_up_all_restarts(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(restarts=1, entry="user_code:Dies"), folder=instance.folder)
        events, result = await tree.end(uid)
        assert result.outcome == "failed"
        assert result.reason == (
            "conductor agent.walker exited with code 9 (the budget of 1 conductor restarts is used up)"
        )
        assert [e.kind for e in events].count("conductor.started") == 4


async def test_a_conductor_that_cannot_start_fails_the_run_with_its_error(instance, walk):
    (instance.folder / "broken.py").write_text("raise RuntimeError('out of order')\n")
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(restarts=0, entry="broken:Agent"), folder=instance.folder)
        events, result = await tree.end(uid)
        assert result.outcome == "failed"
        assert result.reason.startswith("conductor agent.walker exited with code 1: ")
        assert "out of order" in result.reason
        assert "\n" not in result.reason
        states = [e.data["to"] for e in events if e.kind == "run.transition"]
        assert states == ["starting", "finalizing", "stopping", "pristine"]


async def test_a_broker_killed_during_a_run_does_not_change_the_result(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        [broker] = [p for p in tree.daemon.children(recursive=True) if _name(p) == "broker"]
        broker.kill()
        events, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        assert Counter(e.data["episode"]["index"] for e in events if e.kind == "episode.ended") == Counter(
            range(600)
        )


async def test_the_daemon_imports_neither_ray_nor_arrow_and_uses_little_memory(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        daemon = tree.daemon
        mapped = [part.path for part in daemon.memory_maps()]
        assert not [path for path in mapped if "/ray/" in path or "arrow" in path]
        assert daemon.memory_info().rss < 80e6
        await tree.executor.abort(uid)
        await tree.end(uid)


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""
