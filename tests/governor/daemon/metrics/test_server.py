"""`GET /metrics`, also for scrapers that are slow, many, or speak something else."""

from __future__ import annotations

import asyncio
import os
import stat

import pytest

from governor.daemon.metrics import server as metrics_server
from governor.daemon.metrics.server import CONNECTIONS, MetricsServer, wants_open_metrics
from governor.errors import ConfigError
from governor.metrics import OPEN_METRICS, PLAIN_TEXT
from tests.transport.conftest_peers import until

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


class Measuring:
    def __init__(self):
        self.calls = 0

    async def __call__(self):
        self.calls += 1
        return {"runs": {"queued": self.calls}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.sock"


@pytest.fixture
async def server(path):
    async with MetricsServer(f"unix:{path}", Measuring()) as serving, asyncio.timeout(30):
        yield serving


async def connected(server):
    if server.address.startswith("unix:"):
        return await asyncio.open_unix_connection(server.address.removeprefix("unix:"))
    return await asyncio.open_connection(*server.address.rsplit(":", 1))


async def ask(server, request=b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
    """The status, the headers, and the text."""
    reader, writer = await connected(server)
    writer.write(request)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *headers = head.decode().split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in headers), body.decode()


def get(accept):
    return f"GET /metrics?x=1 HTTP/1.1\r\naccept: {accept}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("accept", "kind"), [(PROMETHEUS, OPEN_METRICS), ("*/*", PLAIN_TEXT), ("text/plain", PLAIN_TEXT)]
)
async def test_a_scraper_gets_the_form_that_it_prefers(server, accept, kind):
    status, headers, text = await ask(server, get(accept))
    assert (status, headers["Content-Type"]) == (200, kind)
    assert int(headers["Content-Length"]) == len(text)
    assert 'run_governor_runs{state="queued"} 1\n' in text
    assert text.endswith("# EOF\n") is (kind == OPEN_METRICS)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.1, text/plain", False),
        ("application/openmetrics-text;q=x", True),
    ],
)
def test_weights_of_forms(accept, wanted):
    assert wants_open_metrics(accept) is wanted


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"rubbish\r\n\r\n", 400),
        (b"GET /metrics HTTP/2\r\n\r\n", 400),
        (b"\xff\x00\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
    ],
)
async def test_other_requests_are_refused(server, request_, status):
    assert (await ask(server, request_))[0] == status
    assert (await ask(server))[0] == 200


async def test_head_has_no_body(server):
    status, headers, text = await ask(server, b"HEAD /metrics HTTP/1.0\r\n\r\n")
    assert (status, text) == (200, "")
    assert int(headers["Content-Length"]) > 100


async def test_it_is_measured_once_a_second_however_many_ask(server):
    await asyncio.gather(*(ask(server) for _ in range(10)))
    assert server._measure.calls == 1
    server._measured = (-10.0, {})
    assert 'queued"} 2' in (await ask(server))[2]


async def test_scrapers_that_hang_are_few_and_are_let_go_of(server, monkeypatch):
    hanging = [await connected(server) for _ in range(CONNECTIONS)]
    await until(lambda: len(server._connections) == CONNECTIONS)
    reader, writer = await connected(server)
    assert await reader.read() == b""  # one more is not kept
    writer.close()
    assert server.refused == 1
    for _, writer in hanging[1:]:
        writer.close()
    await until(lambda: len(server._connections) == 1)
    monkeypatch.setattr(metrics_server, "SECONDS", 0.01)
    late, writer = await connected(server)
    assert await late.read() == b""
    writer.close()
    hanging[0][1].close()


async def test_it_ends_while_a_scraper_hangs(path):
    async with asyncio.timeout(20):
        async with MetricsServer(f"unix:{path}", Measuring()) as server:
            reader, writer = await connected(server)
            await until(lambda: server._connections)
        assert await reader.read() == b""
        writer.close()
    assert not path.exists()


async def test_a_unix_socket_is_the_users_alone_and_replaces_a_stale_one(path):
    for _ in range(2):
        async with MetricsServer(f"unix:{path}", Measuring()):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with pytest.raises(ConfigError, match="another process listens there"):
                await MetricsServer(f"unix:{path}", Measuring()).__aenter__()
        os.mknod(path, 0o600 | stat.S_IFSOCK)
    path.unlink()
    path.write_text("mine")
    with pytest.raises(ConfigError, match="the path exists and is no socket"):
        await MetricsServer(f"unix:{path}", Measuring()).__aenter__()
    assert path.read_text() == "mine"


async def test_a_port_that_is_taken_is_an_error_that_says_so():
    async with MetricsServer("127.0.0.1:0", Measuring()) as server:
        assert (await ask(server))[0] == 200
        with pytest.raises(ConfigError, match=f"can't listen at {server.address}: .*in use"):
            await MetricsServer(server.address, Measuring()).__aenter__()
