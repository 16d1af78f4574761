"""`env` and `env_file` of a run reach each kind of process with user code, and what these start; also after a restart of the daemon."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from governor.processes.readiness import readable

pytestmark = [pytest.mark.system, pytest.mark.ray]

CODE = '''
import json, os, subprocess, sys
from pathlib import Path

from gymnasium import spaces

AT_IMPORT = os.environ["OF_ENV"]


def note(what):
    """Writes what this process, and a child of it, have in their environment."""
    child = subprocess.check_output([sys.executable, "-c", "import os; print(os.environ['OF_ENV'])"], text=True)
    seen = [AT_IMPORT, child.strip(), os.environ["OF_FILE"], os.environ["BOTH"]]
    with Path("seen.jsonl").open("a") as file:
        file.write(json.dumps([what, seen]) + "\\n")


class Room:
    observation_space = action_space = spaces.Discrete(2)
    def __init__(self, name):
        note(f"environment {name}")
    def reset(self, *, seed=None):
        return 0, {}
    def step(self, action):
        return 1, 1.0, True, False, {}


class Agent:
    def __init__(self, observation_space, action_space, seed, name):
        note(f"agent {name}")
    def act(self, observation, *, explore):
        return 0


def task():
    note("task")


def wait():
    """Until a byte is written to the pipe `gate`."""
    note("wait")
    with Path("begun").open("wb", buffering=0) as begun, Path("gate").open("rb", buffering=0) as gate:
        begun.write(b"1")
        gate.read(1)
'''
TRANSPORTS = ("conductors", "in_process", "ray")
SERVICE = [
    "{python}",
    "-c",
    "import time, place; place.note('service'); print('ready', flush=True); time.sleep(1000)",
]


def phase(transport):
    simulate = {"environment": transport, "agents": [f"a-{transport}"], "episodes": 2, "transport": transport}
    return {"name": transport, "mode": "eval", "simulate": simulate}


def given(folder, **keys):
    (folder / "place.py").write_text(CODE)
    (folder / "run.env").write_text("OF_FILE='of the file'\nBOTH=file\n")
    env = {"OF_ENV": 5, "BOTH": "env", "PYTHONPATH": str(folder)}
    return {"name": "variables", "env": env, "env_file": "run.env", **keys}


def pipe(path):
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def seen(folder):
    lines = (folder / "seen.jsonl").read_text().splitlines()
    return [(what, tuple(values)) for what, values in map(json.loads, lines)]


EXPECTED = ("5", "5", "of the file", "env")


async def test_all_processes_of_a_run_and_their_children_have_them_and_the_daemon_has_not(instance):
    folder = instance.folder
    kinds = {
        "environments": {name: {"entry": "place:Room", "params": {"name": name}} for name in TRANSPORTS},
        "agents": {f"a-{name}": {"entry": "place:Agent", "params": {"name": name}} for name in TRANSPORTS},
        "services": {"beside": {"command": SERVICE, "ready": {"line": "ready"}}},
    }
    program = {"id": "program", "command": ["{python}", "-c", "import place; place.note('program')"]}
    own = {"id": "own", "command": ["sh", "-c", "echo BOTH of its own: $BOTH"], "env": {"BOTH": "task"}}
    tasks = [{"id": "task", "call": "place:task"}, program, own]
    phases = [*map(phase, TRANSPORTS), {"name": "tasks", "tasks": tasks}]
    async with instance.serve() as tree:
        uid = await tree.executor.submit(given(folder, conductors=kinds, phases=phases), folder=folder)
        _, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
        assert "OF_ENV" not in tree.daemon.environ()
        second = {"name": "next", "phases": [{"name": "p", "tasks": [{"id": "t", "command": ["env"]}]}]}
        later = await tree.executor.submit(second, folder=folder)
        _, result = await tree.end(later)
        assert result.outcome == "finished", result.reason
        assert "OF_ENV" not in (folder / "s" / "runs" / later / "logs" / "tasks.jsonl").read_text()
    found = seen(folder)
    played = {f"{what} {name}" for what in ("environment", "agent") for name in TRANSPORTS}
    assert {what for what, _ in found} == {*played, "service", "task", "program"}
    assert {values for _, values in found} == {EXPECTED}
    lines = (folder / "s" / "runs" / uid / "logs" / "tasks.jsonl").read_text()
    assert "BOTH of its own: task" in lines


async def test_a_restarted_daemon_reads_the_file_anew_and_no_record_has_its_values(instance):
    folder = instance.folder
    begun, gate = (pipe(folder / name) for name in ("begun", "gate"))
    wanted = given(folder, phases=[{"name": "p", "tasks": [{"id": "wait", "call": "place:wait"}]}])
    (folder / "run.env").write_text("OF_FILE=value-of-the-file\nBOTH=file\n")
    async with instance.serve() as tree:
        uid = await tree.executor.submit(wanted, folder=folder)
        async with asyncio.timeout(60):
            await readable(begun)
        os.read(begun, 1)
        os.kill(tree.daemon.pid, signal.SIGKILL)
        await tree.gone()
    state = folder / "s"
    held = [path for path in state.rglob("*") if path.is_file() and b"value-of-the-file" in path.read_bytes()]
    assert held == []
    (folder / "run.env").write_text("OF_FILE=changed\nBOTH=file\n")
    os.write(gate, b"1")
    async with instance.serve() as tree:
        _, result = await tree.end(uid)
        assert result.outcome == "finished", result.reason
    for descriptor in (begun, gate):
        os.close(descriptor)
    assert [values[2] for _, values in seen(folder)] == ["value-of-the-file", "changed"]


async def test_a_file_that_is_gone_at_the_start_ends_the_run_with_its_path(instance):
    folder = instance.folder
    wanted = given(folder, phases=[{"name": "p", "tasks": [{"id": "task", "call": "place:task"}]}])
    (folder / "run.env").unlink()
    async with instance.serve() as tree:
        uid = await tree.executor.submit(wanted | {"restart": {"conductors": 0}}, folder=folder)
        _, result = await tree.end(uid)
    assert result.outcome == "failed"
    assert f"env_file run.env: {folder / 'run.env'} can't be read: No such file or directory" in result.reason
