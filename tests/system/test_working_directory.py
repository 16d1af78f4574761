"""User code works in the run file's folder, and what it prints is in the run's output: in each kind of process, after restarts."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from governor.messages import ReadOutput

pytestmark = pytest.mark.system
CODE = '''
import os, subprocess, sys
from pathlib import Path

from gymnasium import spaces


def note(what):
    """Writes the working directory to a file in it; returns whether it is the first time."""
    path = Path(f"{what}.cwd")
    first = not path.exists()
    with path.open("a") as file:
        file.write(os.getcwd() + "\\n")
    return first


class Room:
    observation_space = action_space = spaces.Discrete(2)
    def __init__(self, name):
        self.name = name
        note(f"{name}.built")
    def reset(self, *, seed=None):
        return 0, {}
    def step(self, action):
        if note(f"{self.name}.step") and self.name == "conductors":
            os._exit(3)  # its conductor is replaced
        return 1, 1.0, True, False, {}


class Agent:
    def __init__(self, observation_space, action_space, seed, name):
        self.name = name
    def act(self, observation, *, explore):
        print("printed by", self.name)
        note(f"{self.name}.act")
        return 0


def task():
    print("printed by the task")
    if note("task"):
        os._exit(3)  # its runner is replaced
    subprocess.run([sys.executable, "-c", "import places; places.note('child')"], check=True,
                   env={**os.environ, "PYTHONPATH": os.getcwd()})
'''
TRANSPORTS = ("conductors", "in_process", "ray")


@pytest.fixture
def code():
    """The run file's folder: not that of the daemon."""
    folder = Path(tempfile.mkdtemp(prefix="gs-code-", dir="/tmp"))
    (folder / "places.py").write_text(CODE)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def phase(transport):
    simulate = {"environment": transport, "agents": [f"a-{transport}"], "episodes": 2, "transport": transport}
    return {"name": transport, "mode": "eval", "simulate": simulate, "on_failure": "continue"}


@pytest.mark.ray
async def test_every_process_with_user_code_works_in_the_run_files_folder(instance, code):
    run = {
        "name": "places",
        "conductors": {
            "environments": {name: {"entry": "places:Room", "params": {"name": name}} for name in TRANSPORTS},
            "agents": {
                f"a-{name}": {"entry": "places:Agent", "params": {"name": name}} for name in TRANSPORTS
            },
        },
        "phases": [
            *map(phase, TRANSPORTS),
            {"name": "tasks", "tasks": [{"id": "task", "call": "places:task", "retries": 1}]},
        ],
    }
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run, folder=code)
        _, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        lines = [line.text async for line in tree.executor.logs(ReadOutput(uid=uid))]
    noted = {path.name.removesuffix(".cwd"): path.read_text().split() for path in code.glob("*.cwd")}
    episodes = {f"{name}.{what}" for name in TRANSPORTS for what in ("built", "step", "act")}
    assert set(noted) == episodes | {"task", "child"}
    assert {place for places in noted.values() for place in places} == {str(code)}
    assert len(noted["conductors.built"]) > 1
    assert len(noted["task"]) == 2
    assert not list(instance.folder.glob("*.cwd"))
    assert "printed by " not in (instance.folder / "log").read_text()
    assert {line for line in lines if line.startswith("printed by ")} == {
        "printed by the task",
        *(f"printed by {name}" for name in TRANSPORTS),
    }


async def test_a_folder_that_is_gone_is_the_reason(instance, code, walk):
    async with instance.serve() as tree, asyncio.timeout(60):
        await tree.executor.drain()
        uid = await tree.executor.submit({**walk(), "restart": {"conductors": 0}}, folder=code)
        shutil.rmtree(code)
        await tree.executor.undrain()
        _, result = await tree.end(uid)
    assert result.outcome == "failed"
    assert f"the run file's folder {code} cannot be entered (No such file or directory)" in result.reason
