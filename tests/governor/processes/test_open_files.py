"""The daemon raises its limit of open files, leaves that of conductors alone, and does not start where it is too low."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
os.execv(sys.executable, [sys.executable, *{arguments!r}])
"""
CHILD = """
import resource
async def report(payload):
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // 16
"""
PARENT = """
import asyncio, resource, sys
sys.path[:0] = [{folder!r}]
from governor.processes import open_files
from governor.processes import process

async def main():
    open_files.raise_limit()
    open_files.raise_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard == 2048, (soft, hard)
    process.warm_up(preload=False)
    child = await process.start(name="c", target="reported_limit:report", payload=b"")
    print("child", await child.wait() * 16)
    process.shut_down()

asyncio.run(main())
"""
BROKER = """
import asyncio
from transport.broker import Broker, BrokerSettings

async def main():
    async with Broker(BrokerSettings(client_endpoint="ipc://{folder}/c", worker_endpoint="ipc://{folder}/w", private_endpoint="ipc://{folder}/p")):
        pass

asyncio.run(main())
"""


def run_with(soft, hard, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", LIMITED.format(soft=soft, hard=hard, arguments=arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **options,
    )


def test_a_start_with_too_few_files_is_refused_with_what_to_do(short_path):
    folders = ("--state-dir", str(short_path / "state"), "--runtime-dir", str(short_path / "run"))
    ended = run_with(64, 64, "-m", "governor", "serve", *folders)
    assert ended.returncode == 78
    assert "limit of open files" in ended.stderr
    assert "it is 64, and the daemon needs 1024" in ended.stderr
    assert "ulimit -Hn" in ended.stderr
    assert "LimitNOFILE=" in ended.stderr
    assert not (short_path / "state").exists()


@pytest.mark.parametrize(("files", "warned"), [(1_024, [(74, 4_136)]), (4_136, [])])
def test_a_broker_with_few_files_tells_how_many_connections_it_takes(short_path, files, warned):
    ended = run_with(files, files, "-c", BROKER.format(folder=short_path))
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stderr.splitlines() if "broker.few_connections" in line]
    assert [(line["most"], line["needed"]) for line in lines] == warned
    assert [line["open_files"] for line in lines] == [files] * len(warned)


def test_the_soft_limit_is_raised_here_and_given_to_conductors_as_it_was(tmp_path):
    (tmp_path / "reported_limit.py").write_text(CHILD)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= 2048
    ended = run_with(512, 2048, "-c", PARENT.format(folder=str(tmp_path)))
    assert (ended.returncode, ended.stdout) == (0, "child 512\n"), ended.stderr
