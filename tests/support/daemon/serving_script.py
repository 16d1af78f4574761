"""A script that serves runs with a `RunGovernor` of its own: a broker, a client, and what a test adds."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).parents[3]
SECONDS = 60

CODE = """\
import os
import subprocess
from pathlib import Path
from gymnasium.spaces import Discrete

class World:
    observation_space = action_space = Discrete(2)
    def __init__(self, detaches=False):
        if detaches:
            detached = subprocess.Popen(["sleep", "3600"], start_new_session=True, env={})
            Path("detached").write_text(str(detached.pid))
    def reset(self, *, seed=None, options=None):
        return 0, {}
    def step(self, action):
        return 1, 0.5, True, False, {}

class Agent:
    def __init__(self, observation_space, action_space, seed):
        pass
    def act(self, observation, *, explore):
        return 1
"""
SCRIPT = """\
import asyncio, gc, json, multiprocessing, os, select, signal, sys, threading
from governor import Executor, RunGovernor
from governor.errors import *
from transport.broker import Broker, BrokerSettings

SETTINGS = BrokerSettings(client_endpoint="ipc://{folder}/clients", worker_endpoint="ipc://{folder}/workers")

def run(episodes=10**7, **params):
    return {{
        "name": "small",
        "conductors": {{
            "environments": {{"world": {{"entry": "small_world:World", "params": params}}}},
            "agents": {{"walker": {{"entry": "small_world:Agent"}}}},
        }},
        "phases": [{{
            "name": "play",
            "simulate": {{"environment": "world", "agents": ["walker"], "episodes": episodes, "transport": "conductors"}},
            "until": [{{"metric": "return", "average_over": 2, "at_least": 2.0}}],
        }}],
    }}

def tell(**values):
    print(json.dumps(values), flush=True)

def serve(broker, uid):
    asyncio.run(RunGovernor(broker, uid).run())

def wait_until_dead(pid):
    try:
        select.select([os.pidfd_open(pid)], [], [])
    except ProcessLookupError:
        pass

async def until(executor, uid, kind):
    async for event in executor.watch(uid):
        if event.kind == kind:
            return

async def with_executor(broker, governor):
    async with Executor(broker.client_endpoint, service=governor.uid, timeout=60) as executor:
        running = asyncio.create_task(governor.run())
        await executor.status()
{body}

async def main():
    async with Broker(SETTINGS) as broker:
        await with_executor(broker, RunGovernor(broker.worker_endpoint, "governor-0"))

if __name__ == "__main__":
    asyncio.run(main())
"""


class Script:
    """A script in a folder of its own; each line that it prints is a JSON object."""

    def __init__(self, folder, body):
        (folder / "small_world.py").write_text(CODE)
        path = folder / "script.py"
        path.write_text(SCRIPT.format(folder=folder, body=textwrap.indent(textwrap.dedent(body), " " * 8)))
        self.process = subprocess.Popen(
            [sys.executable, path],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                "TMPDIR": str(folder),
                "PYTHONPATH": str(REPOSITORY),
                "GOVERNOR_TEST_INSTANCE": str(folder),
            },
        )

    def told(self):
        """What it printed next."""
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=SECONDS)[1]
        return json.loads(line)

    def end(self):
        """Exit code, all that was printed and not read, and the log."""
        out, log = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, [json.loads(line) for line in out.splitlines()], log


def processes(folder):
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("GOVERNOR_TEST_INSTANCE") == str(folder) and process.pid != os.getpid():
                yield process
