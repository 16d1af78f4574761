"""Services of a run in whole process trees: ready before all else, replaced within the budget, dead with the run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import pytest

from governor.processes.readiness import readable
from tests.support.living import gone, lives

pytestmark = pytest.mark.system

SERVER = '''\
"""Answers with the number of this server; ``/exit`` ends it. Has a child in a session of its own, and ignores SIGTERM."""
import http.server, os, signal, subprocess, sys

signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
with open("servers", "a") as file:
    file.write(f"{os.getpid()} {child.pid}\\n")
number = len(open("servers").readlines())


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(number).encode())
        if self.path == "/exit":
            print("it was asked to exit", file=sys.stderr)
            self.wfile.flush()
            os._exit(3)


port = int(sys.argv[1])
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
print("listening at", port)
server.serve_forever()
'''
PLAYER = '''\
"""An environment that asks the service in its constructor, and in each step."""
import urllib.request

import numpy as np
from gymnasium import spaces


class World:
    observation_space = spaces.Box(0.0, 1e9, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, url):
        self.url = url
        self.ask()

    def ask(self, path=""):
        return int(urllib.request.urlopen(self.url + path, timeout=10).read())

    def reset(self, *, seed=None):
        return np.array([self.ask()], np.float32), {}

    def step(self, action):
        return np.array([0], np.float32), float(self.ask()), True, False, {}
'''
READY = [{"http": "/"}, {"line": "listening at"}, None]


COLOURED = """import signal
print("loading 1%\\rloading 99%\\r\\x1b[32mINFO\\x1b[0m: Ready 7\\r", flush=True)
signal.pause()
"""
CONFUSED = """import http.server, socketserver, sys


class Handler(socketserver.BaseRequestHandler):
    answers = [b"220 mail ESMTP hello\\r\\n"]

    def handle(self):
        self.request.recv(4096)
        self.request.sendall(self.answers.pop(0) if self.answers else b"HTTP/1.0 200 OK\\r\\n\\r\\nyes")


socketserver.TCPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def folder(instance):
    (instance.folder / "server.py").write_text(SERVER)
    (instance.folder / "coloured.py").write_text(COLOURED)
    (instance.folder / "confused.py").write_text(CONFUSED)
    (instance.folder / "player.py").write_text(PLAYER)
    return instance.folder


def run_of(*, restarts=2, start=30, episodes=3, on_failure="fail", **service):
    world = {"entry": "player:World", "params": {"url": "http://127.0.0.1:{services.model.port}"}}
    section = {"command": ["python3", "server.py", "{port}"], "ready": {"http": "/"}, **service}
    return {
        "name": "served",
        "conductors": {
            "services": {"model": section},
            "environments": {"world": world},
            "agents": {"walker": {"entry": "user_code:Walker"}},
        },
        "phases": [
            {
                "name": "p",
                "simulate": {"environment": "world", "agents": ["walker"], "episodes": episodes},
                "on_failure": on_failure,
            }
        ],
        "restart": {"conductors": restarts},
        "deadlines": {"start": start},
    }


def servers(folder):
    """Each server that has begun with the child that it has detached."""
    lines = (folder / "servers").read_text().splitlines() if (folder / "servers").exists() else []
    return [[int(pid) for pid in line.split()] for line in lines]


async def asked(tree, uid, number):
    """Returns when an episode has had its reward of this server."""
    async with asyncio.timeout(40), contextlib.aclosing(tree.executor.watch(uid)) as events:
        async for event in events:
            if event.kind == "episode.ended" and event.data["episode"]["value"] == number:
                return
    raise AssertionError(f"the run ended before server {number} was asked")


async def test_each_kind_of_readiness_comes_before_all_else_and_runs_do_not_share_a_port(instance, folder):
    async with instance.serve("--slots", "3") as tree:
        uids = [await tree.executor.submit(run_of(ready=ready), folder=folder) for ready in READY]
        for uid in uids:
            events, result = await tree.end(uid)
            assert result.outcome == "finished", result.reason
            kinds = [(e.kind, e.data.get("conductor")) for e in events]
            ready = kinds.index(("conductor.ready", "service.model"))
            assert ready < kinds.index(("conductor.started", "environment.world"))
        pids = servers(folder)
        assert len(pids) == 3
        assert not any(lives(pid) for pair in pids for pid in pair)


@pytest.mark.parametrize(
    "service",
    [
        {"command": ["python3", "coloured.py"], "ready": {"line": "^INFO: Ready [0-9]+$"}},
        {"command": ["python3", "confused.py", "{port}"]},
    ],
    ids=["a line with colours, drawn anew", "answers that are no HTTP at first"],
)
async def test_a_service_may_say_in_many_ways_that_it_is_ready(instance, folder, service):
    wanted = run_of(restarts=0, **service)
    wanted["conductors"]["environments"]["world"] = {"entry": "gymnasium:FrozenLake-v1"}
    async with instance.serve() as tree:
        uid = await tree.executor.submit(wanted, folder=folder)
        _, result = await tree.end(uid)
        assert (result.outcome, result.reason) == ("finished", "")
        if "confused.py" in service["command"]:
            log = (folder / "log").read_text()
            assert '"lacking": "BadStatusLine: 220 mail ESMTP hello' in log


async def test_status_and_log_show_a_service_and_an_abort_ends_it(instance, folder):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run_of(episodes=1_000_000), folder=folder)
        await tree.until(uid, "episode.ended")
        [run] = (await tree.executor.status(uid)).runs
        [service] = [each for each in run.conductors if each.kind == "service"]
        [pids] = servers(folder)
        assert set(pids) <= set(service.started)
        await tree.executor.abort(uid)
        await tree.end(uid)
        assert not any(map(lives, pids))
        lines = (folder / "s" / "runs" / uid / "logs" / "service.model.jsonl").read_text()
        assert "listening at" in lines


async def test_a_service_that_dies_is_replaced_within_the_budget_and_then_the_run_fails(instance, folder):
    async with instance.serve() as tree:
        # the environment finds no server meanwhile
        wanted = run_of(restarts=2, episodes=1_000_000, on_failure="continue")
        uid = await tree.executor.submit(wanted, folder=folder)
        for number in (1, 2):
            await asked(tree, uid, number)
            pid, child = servers(folder)[-1]
            os.kill(pid, signal.SIGKILL)
            await tree.until(uid, "conductor.ready", conductor="service.model", incarnation=number + 1)
            assert not lives(child)
        await asked(tree, uid, 3)
        os.kill(servers(folder)[-1][0], signal.SIGSEGV)
        events, result = await tree.end(uid)
        reason = "service.model: its program ended: killed by SIGSEGV"
        assert result.outcome == "failed"
        assert result.reason == f"{reason} (the budget of 2 conductor restarts is used up)"
        failed = [e.data["reason"] for e in events if e.kind == "conductor.failed"]
        assert failed[:2] == 2 * ["its program ended: killed by SIGKILL"]
        assert not any(lives(pid) for pair in servers(folder) for pid in pair)


async def test_one_that_is_never_ready_ends_the_run_at_its_start_deadline(instance, folder):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run_of(start=2, ready={"line": "never"}), folder=folder)
        _, result = await tree.end(uid)
        assert result.outcome == "failed"
        assert "not ready within 2 s (deadlines.start): service.model" in result.reason
        [pids] = servers(folder)
        assert not any(map(lives, pids))


async def test_one_that_does_not_start_says_why(instance, folder):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run_of(restarts=0, command=["no-such"]), folder=folder)
        _, result = await tree.end(uid)
        assert f"there is no program 'no-such' on PATH, nor in {folder}" in result.reason


async def test_an_abort_while_it_starts_leaves_nothing(instance, folder):
    os.mkfifo(folder / "begun")
    begun = os.open(folder / "begun", os.O_RDWR | os.O_NONBLOCK)
    command = ["sh", "-c", "echo $$ > begun; exec python3 server.py {port}"]
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run_of(command=command, ready={"line": "never"}), folder=folder)
        async with asyncio.timeout(30):
            await readable(begun)
        pid = int(os.read(begun, 64))
        assert lives(pid)
        await tree.executor.abort(uid)
        _, result = await tree.end(uid)
        assert result.outcome == "aborted"
        assert not lives(pid)
        assert not any(lives(pid) for pair in servers(folder) for pid in pair)
    os.close(begun)


@pytest.mark.long
@pytest.mark.parametrize("victim", ["conductor", "daemon"])
async def test_kills_of_conductor_and_daemon_end_it_and_it_begins_again(instance, folder, victim):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(run_of(episodes=1_000_000, on_failure="continue"), folder=folder)
        await tree.until(uid, "episode.ended")
        [pids] = servers(folder)
        if victim == "conductor":
            os.kill(await tree.pid_of(uid, "service.model"), signal.SIGKILL)
            await tree.until(uid, "conductor.ready", conductor="service.model", incarnation=2)
            assert not any(map(lives, pids))
            await tree.executor.abort(uid)
            await tree.end(uid)
        else:
            tree.daemon.kill()
            for pid in pids:
                await gone(pid)
            await tree.gone()
    if victim == "daemon":
        async with instance.serve() as tree:
            await tree.until(uid, "conductor.ready", conductor="service.model", incarnation=2)
            await tree.executor.abort(uid)
            await tree.end(uid)
    assert not any(lives(pid) for pair in servers(folder) for pid in pair)
