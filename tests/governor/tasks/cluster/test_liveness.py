"""Who listens, and who only seems to: a process of its own that is stopped, continued, killed."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
import time

import pytest

from governor.errors import ConductorError
from governor.tasks.cluster import liveness
from governor.tasks.cluster.cluster import Cluster
from governor.tasks.cluster.liveness import (
    GREETING,
    all_answer,
    answers,
    ended,
    first_ended,
)

SILENCE = 2.0
SERVER = """
import asyncio, sys
async def take(reader, writer):
    asked = await reader.readexactly(int(sys.argv[1]))
    if sys.argv[2] == "answer":
        writer.write(asked[:3])
        await reader.read()
    writer.close()
async def main():
    server = await asyncio.start_server(take, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(liveness, "SILENT_SECONDS", SILENCE)


@pytest.fixture
async def serve():
    """`await serve("answer")` or `("close")` gives the process of a server and its port."""
    servers = []

    async def start(how):
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SERVER, str(len(GREETING)), how), stdout=asyncio.subprocess.PIPE
        )
        servers.append(server)
        return server, int(await server.stdout.readline())

    yield start
    for server in servers:
        if server.returncode is None:
            server.kill()
        await server.wait()


@pytest.mark.parametrize("how", ["answer", "close"])
async def test_a_server_answers_until_it_is_stopped_and_when_it_goes_on(serve, how):
    server, port = await serve(how)
    assert await answers("127.0.0.1", port)
    server.send_signal(signal.SIGSTOP)
    assert not await answers("127.0.0.1", port)
    server.send_signal(signal.SIGCONT)
    assert await answers("127.0.0.1", port)
    server.kill()
    await server.wait()
    assert not await answers("127.0.0.1", port)


async def test_the_end_of_a_stopped_server_is_no_answer(serve):
    server, port = await serve("answer")
    server.send_signal(signal.SIGSTOP)
    asked = asyncio.create_task(answers("127.0.0.1", port))
    assert not await answers("127.0.0.1", port, silence=0.5)
    server.kill()
    async with asyncio.timeout(30):
        assert not await asked


async def test_all_must_answer_and_the_first_that_ends_is_told(serve):
    (one, first), (_, second) = await serve("answer"), await serve("answer")
    both = [("127.0.0.1", first, "one"), ("127.0.0.1", second, "another")]
    assert await all_answer(both)
    told = asyncio.create_task(first_ended(both))
    one.kill()
    async with asyncio.timeout(30):
        assert await told == f"one at 127.0.0.1:{first} is gone (Connection refused)"
    assert not await all_answer(both)


@pytest.mark.parametrize("how", ["answer", "close"])
async def test_the_silence_of_a_stopped_server_is_its_end(serve, how):
    server, port = await serve(how)
    watch = asyncio.create_task(ended("127.0.0.1", port, "it"))
    assert await answers("127.0.0.1", port)
    server.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(30):
        assert await watch == f"it at 127.0.0.1:{port} is silent for 2 s"


async def test_a_short_silence_and_our_own_absence_are_no_end(serve):
    server, port = await serve("answer")
    server.send_signal(signal.SIGSTOP)
    asked = asyncio.create_task(answers("127.0.0.1", port))
    watch = asyncio.create_task(ended("127.0.0.1", port, "it"))
    assert not await answers("127.0.0.1", port, silence=0.5)  # the others have asked by then
    time.sleep(1.5 * SILENCE)  # noqa: ASYNC251  # the fault itself: the loop is held up
    assert not await answers("127.0.0.1", port, silence=0.5)
    server.send_signal(signal.SIGCONT)
    assert await asked
    assert await answers("127.0.0.1", port)
    assert not watch.done()
    watch.cancel()


async def test_connections_that_a_loop_was_too_busy_to_open_are_no_end(serve):
    _, port = await serve("answer")
    watch = asyncio.create_task(ended("127.0.0.1", port, "it"))
    asked = asyncio.create_task(answers("127.0.0.1", port))
    for _ in range(4 * liveness.RECONNECT_TRIES):
        time.sleep(1.2 * liveness.CONNECT_SECONDS)  # noqa: ASYNC251  # the fault itself: the loop is held up
        await asyncio.sleep(0)
    assert await asked
    assert not watch.done()
    watch.cancel()


async def test_a_gcs_that_is_silent_while_one_connects_is_told_before_ray_gives_up(monkeypatch):
    hanging = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # the kernel takes connections for it
        host, port = frozen.getsockname()
        cluster = Cluster(address=f"{host}:{port}", token_path=None, namespace="x")
        monkeypatch.setattr(cluster, "_connect", hanging.wait)
        try:
            async with asyncio.timeout(30):
                with pytest.raises(ConductorError, match=rf"Ray's GCS at {host}:{port} is silent for 2 s"):
                    await cluster.connect()
        finally:
            hanging.set()
            cluster.close()
