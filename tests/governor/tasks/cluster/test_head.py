"""The local head: ready when it says so, refuses clients without the token, leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import psutil
import pytest

from governor.errors import ProcessError
from governor.tasks.cluster.head import RayHead

pytestmark = pytest.mark.ray


@pytest.fixture
async def head(tmp_path):
    head = RayHead(state_folder=tmp_path / "state", runtime_folder=tmp_path / "runtime", num_cpus=1)
    yield head
    await head.stop()


def family(head: RayHead) -> list[psutil.Process]:
    root = psutil.Process(head.pid)
    return [root, *root.children(recursive=True)]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


async def test_it_starts_listens_on_loopback_only_and_leaves_nothing(head):
    where = await head.start()
    assert stat.S_IMODE(where.token_path.stat().st_mode) == 0o600
    host, port = where.address.split(":")
    assert host.startswith("127.")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.close()
    processes = family(head)
    ports = [
        c.laddr.ip for p in processes for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN
    ]
    assert ports
    assert all(ip.removeprefix("::ffff:").startswith("127.") for ip in ports)
    temp = head._temp
    assert temp.stat().st_mode & 0o77 == 0
    await head.stop()
    assert await head.exited() != 0
    assert not alive(processes)
    assert not temp.exists()
    await head.stop()


async def test_modules_in_the_folder_of_the_daemon_are_not_taken_for_pythons_own(head, tmp_path, monkeypatch):
    for name in ("random", "logging", "queue"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError(__file__)")
    monkeypatch.chdir(tmp_path)
    assert (await head.start()).address.startswith("127.")


@pytest.mark.long
async def test_without_the_token_nobody_gets_in(head, tmp_path):
    where = await head.start()
    script = (
        "import asyncio, sys\n"
        "from governor.tasks.cluster.cluster import Cluster\n"
        "asyncio.run(Cluster(address=sys.argv[1], token_path=sys.argv[2], namespace='x').connect())\n"
    )
    guess = tmp_path / "guess"
    guess.write_text("0" * 64)
    stranger = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, where.address, str(guess)),
        env={**os.environ, "RAY_NUM_REDIS_GET_RETRIES": "1", "PYTHONPATH": str(Path(__file__).parents[4])},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(40):
            _, told = await stranger.communicate()
    finally:
        if stranger.returncode is None:
            stranger.kill()
            await stranger.wait()
    assert stranger.returncode != 0
    assert b"it does not accept the token" in told


@pytest.mark.parametrize("part", ["gcs_server", pytest.param("raylet", marks=pytest.mark.long)])
async def test_the_death_of_a_part_is_the_end_of_the_head(head, part):
    await head.start()
    processes = family(head)
    temp = head._temp
    victim = next(p for p in processes if p.name() == part)
    victim.send_signal(signal.SIGKILL)
    async with asyncio.timeout(10):
        assert await head.exited() != 0
    await head.stop()
    assert not alive(processes)
    assert not temp.exists()


@pytest.mark.parametrize("part", [pytest.param("gcs_server", marks=pytest.mark.long), "raylet"])
async def test_a_part_that_dies_during_the_start_is_not_waited_for(head, part):
    starting = asyncio.create_task(head.start())
    victim = None
    while victim is None and not starting.done():
        await asyncio.wait({starting}, timeout=0.01)
        victim = next((p for p in family(head) if p.name() == part), None) if head.pid else None
    victim.kill()
    async with asyncio.timeout(10):  # Ray's own patience is 30 s
        with pytest.raises(
            ProcessError, match=f"the Ray head did not start: {part} has ended during its start"
        ):
            await starting
    assert head._temp is None


async def test_a_head_that_cannot_start_says_why(tmp_path):
    head = RayHead(state_folder=tmp_path, runtime_folder=tmp_path, num_cpus=-1)
    with pytest.raises(ProcessError, match=r"the Ray head did not start: .*[Cc][Pp][Uu]"):
        await head.start()
    assert head._temp is None
