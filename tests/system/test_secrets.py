"""Secrets reach each kind of process with user code, and stand in nothing that is kept: no record, line, log or status."""

from __future__ import annotations

import json
import signal

import pytest

from governor.errors import UsageError
from governor.messages import ReadOutput

pytestmark = [pytest.mark.system, pytest.mark.ray]

VALUE = "sk-5f9c2e7a41d8"
LABEL = "[secret KEY]"
CODE = """
import logging, os, subprocess, sys, time
from gymnasium import spaces

KEY = os.environ["KEY"]

def say(what):
    print(f"{what} has {KEY}")
    logging.warning("%s has %s", what, KEY)
    subprocess.run([sys.executable, "-c", "import os; print('child has', os.environ['KEY'])"], check=True)

class Room:
    observation_space = action_space = spaces.Discrete(2)
    def __init__(self, name, fails):
        self.fails = fails
        say(f"environment {name}")
    def reset(self, *, seed=None):
        if self.fails:
            raise PermissionError(f"401: {KEY} is no key")
        return 0, {}
    def step(self, action):
        return 1, 1.0, True, False, {}

class Agent:
    def __init__(self, observation_space, action_space, seed):
        pass
    def act(self, observation, *, explore):
        return 0

def task():
    say("task")
    raise PermissionError(f"401: {KEY} is no key")

def value():
    return {"key": KEY}

def wait():
    say("wait")
    print("more of", KEY, end="\\r", flush=True)
    open("begun", "w").close()
    time.sleep(1000)
"""
TRANSPORTS = ("conductors", "in_process", "ray")


def given(folder):
    (folder / "place.py").write_text(CODE)
    rooms = {name: {"entry": "place:Room", "params": {"name": name, "fails": True}} for name in TRANSPORTS}
    shell = ["sh", "-c", "echo $KEY; echo $KEY >&2; exit 3"]
    tasks = [
        {"id": "task", "call": "place:task"},
        {"id": "value", "call": "place:value"},
        {"id": "shell", "command": shell},
    ]
    phases = [
        {
            "name": name,
            "mode": "eval",
            "on_failure": "continue",
            "simulate": {
                "environment": name,
                "agents": [f"agent-{name}"],
                "episodes": 2,
                "transport": name,
            },
        }
        for name in TRANSPORTS
    ]
    return {
        "name": "secrets",
        "secrets": {"KEY": "openai"},
        "conductors": {
            "environments": rooms,
            "agents": {f"agent-{name}": {"entry": "place:Agent"} for name in TRANSPORTS},
        },
        "phases": [*phases, {"name": "tasks", "on_failure": "continue", "tasks": tasks}],
    }


def put(instance):
    """The secret, where the daemon looks for it."""
    folder = instance.folder / "config" / "run-governor" / "secrets"
    folder.mkdir(parents=True)
    (folder / "openai").write_text(f"{VALUE}\n")
    (folder / "openai").chmod(0o600)
    instance.environ["XDG_CONFIG_HOME"] = str(instance.folder / "config")


def files_with_it(instance):
    """All files of the daemon in which the secret stands."""
    kept = [instance.folder / "log", *(instance.folder / "s").rglob("*")]
    found = {path.name: path.read_bytes() for path in kept if path.is_file()}
    return [(name, around(content)) for name, content in found.items() if VALUE.encode() in content]


def around(content):
    place = content.index(VALUE.encode())
    return content[max(place - 200, 0) : place + 100]


async def test_it_reaches_all_processes_and_stands_nowhere(instance):
    put(instance)
    async with instance.serve("--log-level", "debug") as tree:
        endpoint = ("--broker", tree.executor.endpoint)
        uid = await tree.executor.submit(given(instance.folder), folder=instance.folder)
        events, result = await tree.end(uid)
        assert VALUE not in repr(events)
        assert VALUE not in repr(result)
        for phase in result.phases[:3]:
            [failure] = phase.failures
            assert f"401: {LABEL} is no key" in failure.reason, phase
        records = {record.task: record for record in result.phases[3].tasks}
        assert f"401: {LABEL} is no key" in records["task"].error
        assert records["shell"].error.endswith(f"exit code 3: {LABEL}")
        assert records["value"].value == {"key": LABEL}
        code, lines, _ = await instance.governor(*endpoint, "logs", uid, "--json")
        assert code == 0
        said = [json.loads(line)["text"] for line in lines.splitlines()]
        for name in TRANSPORTS:
            assert sum(f"environment {name} has {LABEL}" in line for line in said) >= 2, "printed and logged"
        assert f"child has {LABEL}" in said
        assert said.count(LABEL) == 2, "of the shell"
        for verb in (("results", uid, "--failures"), ("watch", uid), ("status", uid), ("report", uid)):
            code, out, complaint = await instance.governor(*endpoint, *verb)
            assert (code, VALUE in out + complaint) == (0, False), verb
        [page] = instance.folder.glob("report-*.html")
        assert LABEL in page.read_text()
        assert VALUE not in page.read_text()
    assert files_with_it(instance) == []


async def unfinished(tree, uid):
    return [
        line.text
        async for page in tree.executor.output_pages(ReadOutput(uid=uid), follow=False)
        for line in page.unfinished
    ]


@pytest.mark.parametrize("is_read", [False, True])
async def test_what_a_killed_daemon_has_left_is_masked_by_the_next_one(instance, is_read):
    put(instance)
    run = given(instance.folder)
    run["conductors"] = {}
    run["phases"] = [{"name": "tasks", "tasks": [{"id": "wait", "call": "place:wait"}]}]
    async with instance.serve() as tree:
        uid = await tree.executor.submit({**run, "resume": "never"}, folder=instance.folder)
        await tree.until(uid, "task.started")
        while not (instance.folder / "begun").exists() or (is_read and not await unfinished(tree, uid)):
            await tree.executor.status()
        tree.daemon.send_signal(signal.SIGKILL)
        await tree.gone()
    async with instance.serve() as tree:
        await tree.end(uid)
        code, lines, _ = await instance.governor("--broker", tree.executor.endpoint, "logs", uid, "--json")
        assert code == 0
        assert f"wait has {LABEL}" in lines
        assert f"more of {LABEL}" in lines
        assert VALUE not in lines
    assert files_with_it(instance) == []


async def test_one_that_is_not_there_is_refused_when_a_run_is_submitted(instance):
    instance.environ["XDG_CONFIG_HOME"] = str(instance.folder / "config")
    run = given(instance.folder)
    async with instance.serve() as tree:
        with pytest.raises(UsageError, match=r"there is no secret 'openai': no file .*/secrets/openai"):
            await tree.executor.submit(run, folder=instance.folder)
        with pytest.raises(UsageError, match="there is no secret 'openai'"):
            await tree.executor.submit_group({**run, "matrix": {"seed": [1, 2]}}, folder=instance.folder)
        assert (await tree.executor.status()).runs == ()
