"""What user code prints, through a whole daemon: live, after deaths, two runs at once; never in the daemon's log."""

import asyncio
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from governor.errors import NoSuchRun, UsageError
from governor.messages import ReadOutput

pytestmark = pytest.mark.system
CODE = """
import os, sys, time
from pathlib import Path

from gymnasium import spaces


class Room:
    observation_space = action_space = spaces.Discrete(2)
    def __init__(self, name, die=False, wait=""):
        self.name, self.die, self.wait = name, die, wait
        print(f"{name} built")
    def reset(self, *, seed=None):
        print(f"{self.name} reset", file=sys.stderr)
        os.write(1, f"{self.name} raw".encode() + b"\\n")
        return 0, {}
    def step(self, action):
        while self.wait and not Path(self.wait).exists():
            time.sleep(0.01)
        if self.die:
            sys.stdout.write(f"{self.name} half")
            sys.stdout.flush()
            os.kill(os.getpid(), 9)
        return 1, 1.0, True, False, {"note": "no number"}


class Agent:
    def __init__(self, observation_space, action_space, seed):
        pass
    def act(self, observation, *, explore):
        return 0


class Pupil(Agent):
    def act(self, observation, *, explore):
        print("asked")
        return 0
    def learn(self, transition):
        pass


def late(seconds=60):
    os.write(1, b"within")
    import ctypes, signal
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    ctypes.PyDLL(None).sleep(seconds)
"""


@pytest.fixture
def code():
    folder = Path(tempfile.mkdtemp(prefix="gs-code-", dir="/tmp"))
    (folder / "rooms.py").write_text(CODE)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run_of(name, *, transport="conductors", episodes=2, **params):
    simulate = {"environment": "room", "agents": ["agent"], "episodes": episodes, "transport": transport}
    return {
        "name": name,
        "restart": {"conductors": 0},
        "conductors": {
            "environments": {"room": {"entry": "rooms:Room", "params": {"name": name, **params}}},
            "agents": {"agent": {"entry": "rooms:Agent"}},
        },
        "phases": [{"name": "train", "mode": "eval", "simulate": simulate}],
    }


async def all_of(executor, uid, *, follow=False, **wanted):
    return [line async for line in executor.logs(ReadOutput(uid=uid, **wanted), follow=follow)]


@pytest.mark.parametrize(
    ("transport", "conductor"),
    [("conductors", "environment.room"), ("in_process", "simulation"), ("ray", "tasks")],
)
async def test_lines_have_conductor_stream_and_episode_and_are_not_in_the_daemons_log(
    instance, code, transport, conductor
):
    async with instance.serve() as tree, asyncio.timeout(60):
        uid = await tree.executor.submit(run_of("one", transport=transport), folder=code)
        lines = await all_of(tree.executor, uid, follow=True)
        assert {line.phase for line in lines if line.episode is not None} == {"train"}
        assert {(line.text, line.conductor, line.stream, line.episode) for line in lines} == {
            ("one built", conductor, "stdout", None),
            *(
                (f"one {what}", conductor, stream, episode)
                for what, stream in (("reset", "stderr"), ("raw", "stdout"))
                for episode in (0, 1)
            ),
        }
        assert await all_of(tree.executor, uid, conductor=conductor.partition(".")[2] or conductor) == lines
        assert len(await all_of(tree.executor, uid, episode=1)) == 2
        with pytest.raises(UsageError, match=rf"no conductor 'nobody'; it has .*{conductor}"):
            await all_of(tree.executor, uid, conductor="nobody")
        with pytest.raises(NoSuchRun):
            await all_of(tree.executor, "nosuchrun")
    for line in (instance.folder / "log").read_text().splitlines():
        json.loads(line)


async def test_lines_of_an_evaluation_bear_its_number(instance, code):
    async with instance.serve() as tree, asyncio.timeout(100):
        for transport in ("conductors", "in_process"):
            for vector in (1, 2):
                run = run_of("one", transport=transport, episodes=4)
                run["conductors"]["agents"]["agent"]["entry"] = "rooms:Pupil"
                run["conductors"]["environments"]["room"]["vector"] = vector
                run["phases"][0] |= {"mode": "train", "evaluate": {"every": 2, "episodes": 2}}
                uid = await tree.executor.submit(run, folder=code)
                lines = await all_of(tree.executor, uid, follow=True)
                assert len([line for line in lines if line.text == "one built"]) == vector
                found = {
                    (line.episode, line.evaluation, line.text)
                    for line in lines
                    if "raw" not in line.text and "built" not in line.text
                }
                asked = {line.evaluation for line in lines if line.text == "asked"}
                assert asked == {None, 1, 2}
                assert {each for each in found if each[2] == "one reset"} == {
                    (episode, evaluation, "one reset")
                    for episode, evaluation in enumerate((None, None, None, None, 1, 1, 2, 2))
                }
                assert len(await all_of(tree.executor, uid, evaluation=2)) >= 4


@pytest.mark.ray
async def test_what_the_governor_logs_in_a_runner_is_a_line_with_level_and_logger(instance, code):
    run = run_of("one", transport="ray", episodes=1)
    run["phases"][0]["simulate"]["info"] = "all"
    async with instance.serve() as tree, asyncio.timeout(60):
        uid = await tree.executor.submit(run, folder=code)
        lines = await all_of(tree.executor, uid, follow=True, level="info")
    assert [(line.level, line.logger, line.episode, line.text) for line in lines] == [
        ("info", "governor", 0, "info.key_left_out key=note reason='is of type str, not a number'")
    ]


async def test_an_environment_that_dies_within_a_line_leaves_it_at_each_attempt(instance, code):
    async with instance.serve() as tree, asyncio.timeout(60):
        uid = await tree.executor.submit(run_of("one", die=True), folder=code)
        lines = await all_of(tree.executor, uid, follow=True)
    assert [line.text for line in lines if line.partial] == ["one half"] * 3


async def test_lines_of_a_task_bear_its_run_and_attempt_also_if_it_is_killed_within_a_line(instance, code):
    tasks = [
        {"id": "late", "call": "rooms:late", "timeout": 0.2, "retries": 1},
        {"id": "twice", "call": "rooms:late", "args": {"seconds": 0}, "repeat": 2},
    ]
    run = {"name": "tasks", "phases": [{"name": "p", "on_failure": "continue", "grace": 0.1, "tasks": tasks}]}
    async with instance.serve() as tree, asyncio.timeout(60):
        uid = await tree.executor.submit(run, folder=code)
        lines = await all_of(tree.executor, uid, follow=True)
        found = sorted((line.task, line.run, line.attempt, line.text) for line in lines)
        assert found == [
            ("late", 0, 1, "within"),
            ("late", 0, 2, "within"),
            ("twice", 0, 1, "within"),
            ("twice", 1, 1, "within"),
        ]
        assert len(await all_of(tree.executor, uid, task="late", attempt=2)) == 1
        assert len(await all_of(tree.executor, uid, run=1)) == 1
        assert not list((instance.folder / "s" / "runs" / uid / "logs").glob("spool/*"))


async def test_two_runs_at_once_do_not_mix(instance, code):
    async with instance.serve("--slots", "2") as tree, asyncio.timeout(60):
        uids = [await tree.executor.submit(run_of(name, episodes=50), folder=code) for name in ("one", "two")]
        for uid, name in zip(uids, ("one", "two"), strict=True):
            lines = await all_of(tree.executor, uid, follow=True)
            assert {line.text.split()[0] for line in lines} == {name}
            assert len(lines) == 101


async def test_kill_9_of_the_daemon_loses_no_line_and_doubles_none(instance, code):
    gate = code / "gate"
    async with asyncio.timeout(90):
        async with instance.serve() as tree:
            uid = await tree.executor.submit(run_of("one", episodes=1, wait=str(gate)), folder=code)
            following = tree.executor.logs(ReadOutput(uid=uid), follow=True)
            assert len([await anext(following) for _ in range(3)]) == 3
            await following.aclose()
            os.kill(tree.daemon.pid, signal.SIGKILL)
            await tree.gone()
        gate.touch()
        async with instance.serve() as tree:
            lines = await all_of(tree.executor, uid, follow=True)
    first = [line for line in lines if line.pid == lines[0].pid]
    assert sorted(line.text for line in first) == ["one built", "one raw", "one reset"]
    assert len(lines) == 6


async def test_a_queued_run_has_no_lines_yet_and_its_conductors_are_known(instance, code):
    gate = code / "gate"
    async with instance.serve() as tree, asyncio.timeout(60):
        await tree.executor.submit(run_of("first", wait=str(gate)), folder=code)
        queued = await tree.executor.submit(run_of("second"), folder=code)
        assert await all_of(tree.executor, queued, conductor="room") == []
        following = asyncio.create_task(all_of(tree.executor, queued, follow=True))
        gate.touch()
        assert len(await following) == 5
