"""The live page's server: who gets a page, what a page may do, and what becomes of a page that does not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
from urllib.parse import urlsplit

import aiohttp
import pytest

from governor.errors import UsageError
from governor.report.live import Live
from governor.report.server import PageServer
from tests.support.daemon.api_world import RUN, open_api


@contextlib.asynccontextmanager
async def served(executor, **more):
    async with PageServer(Live(executor), **more).listening(0) as server, aiohttp.ClientSession() as browser:
        yield server, browser


async def events_of(answer):
    """The events of a stream: name and data."""
    name = ""
    async for line in answer.content:
        kind, _, text = line.decode().rstrip("\n").partition(": ")
        if kind == "event":
            name = text
        elif kind == "data":
            yield name, json.loads(text)


async def test_who_has_the_address_gets_the_page_and_who_has_not_gets_nothing():
    async with open_api() as daemon, served(daemon.executor) as (server, browser):
        await daemon.executor.submit(RUN)
        parts = urlsplit(server.url)
        assert parts.hostname == "127.0.0.1"
        token = parts.path.strip("/")
        assert len(token) >= 32
        async with browser.get(server.url) as answer:
            assert answer.status == 200
            assert 'data-stream="events?run=' in await answer.text()
        root = f"http://{parts.netloc}"
        for path in (
            "/",
            "/events",
            f"/{token[:-1]}/",
            f"/{token}x/",
            "/wrong/events",
            "/%FF/",
            f"/{token.swapcase()}/",
        ):
            async with browser.get(root + path) as answer:
                assert (answer.status, token in await answer.text()) == (404, False), path


async def test_a_page_elsewhere_whose_name_points_here_is_refused():
    async with open_api() as daemon, served(daemon.executor) as (server, browser):
        port = urlsplit(server.url).port
        for path in ("", "events"):
            for host in (
                "evil.example",
                f"evil.example:{port}",
                "127.0.0.1",
                f"127.0.0.1:{port + 1}",
                f"127.0.0.1.evil.example:{port}",
            ):
                async with browser.get(server.url + path, headers={"Host": host}) as answer:
                    assert answer.status == 403, host
        async with browser.get(server.url, headers={"Host": f"localhost:{port}"}) as answer:
            assert answer.status == 200


async def test_a_page_of_another_origin_gets_no_leave_to_read_an_answer():
    async with open_api() as daemon, served(daemon.executor) as (server, browser):
        root = server.url.rsplit("/", 2)[0]
        for origin in ("https://evil.example", "http://127.0.0.1:1", "null"):
            sent = {"Origin": origin}
            for url, status in (
                (server.url, 200),
                (f"{server.url}events", 200),
                (f"{root}/wrong/", 404),
                (f"{root}/wrong/events", 404),
            ):
                async with browser.get(url, headers=sent) as answer:
                    assert answer.status == status
                    assert [name for name in answer.headers if name.startswith("Access-Control")] == []
                    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
                    assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
            asked = {**sent, "Access-Control-Request-Method": "GET"}
            async with browser.options(server.url, headers=asked) as answer:
                assert answer.status == 405
                assert [name for name in answer.headers if name.startswith("Access-Control")] == []


async def test_it_is_read_only_and_each_answer_forbids_caches_referrers_frames_and_guesses():
    async with open_api() as daemon, served(daemon.executor) as (server, browser):
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
            async with browser.request(method, server.url) as answer:
                assert answer.status == 405, method
        for path, status in (("", 200), ("events", 200), ("../other/", 404), ("?run=absent", 404)):
            async with browser.get(server.url + path) as answer:
                assert answer.status == status
                assert answer.headers["Cache-Control"] == "no-store"
                assert answer.headers["Referrer-Policy"] == "no-referrer"
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
                assert "Access-Control-Allow-Origin" not in answer.headers


async def test_a_port_that_is_taken_is_named():
    async with open_api() as daemon, served(daemon.executor) as (server, _):
        port = urlsplit(server.url).port
        with pytest.raises(UsageError, match=f"port {port}"):
            async with PageServer(Live(daemon.executor)).listening(port):
                pass


async def test_a_queued_run_is_listed_with_its_sections_and_each_is_sent_once():
    async with open_api() as daemon, served(daemon.executor) as (server, browser):
        uid = await daemon.executor.submit(RUN)
        async with browser.get(f"{server.url}events?run={uid}") as answer:
            assert answer.content_type == "text/event-stream"
            seen = []
            async with asyncio.timeout(20):
                async for name, data in events_of(answer):
                    seen.append((name, data.get("name") if isinstance(data, dict) else None))
                    if name == "section" and data["name"] == "curves":
                        break
                second = await daemon.executor.submit(RUN)
                async for name, data in events_of(answer):
                    seen.append((name, data.get("name") if isinstance(data, dict) else None))
                    if name == "runs":
                        assert [run["uid"] for run in data] == [second, uid]
                        assert data[0] == {
                            "uid": second,
                            "name": "r",
                            "outcome": "in work",
                            "state": "queued",
                        }
                        break
        assert seen.count(("daemon", "")) == 0
        assert seen.count(("daemon", None)) == 1
        assert seen.count(("runs", None)) == 2
        assert seen.count(("section", "curves")) == 1


async def test_the_daemon_is_asked_only_while_a_page_is_open():
    async with open_api() as daemon, served(daemon.executor) as (server, browser):
        uid = await daemon.executor.submit(RUN)

        def at_work():
            return [task for task in asyncio.all_tasks() if task.get_name().startswith("live.")]

        assert at_work() == []
        async with browser.get(f"{server.url}events?run={uid}") as answer:
            await anext(events_of(answer))
            assert at_work() != []
        # The page is gone: the next event, or sign of life, finds out.
        asking = at_work()
        await daemon.executor.submit(RUN)
        async with asyncio.timeout(30):
            await asyncio.wait(asking)
        assert at_work() == []


class Flood(Live):
    """Events without end."""

    ended = None

    async def following(self, uid):
        type(self).ended = asyncio.Event()
        try:
            while True:
                yield "section", "x" * 1_000_000
        finally:
            self.ended.set()


async def test_a_page_that_does_not_read_is_dropped():
    async with PageServer(Flood(None), slow_seconds=0.2).listening(0) as server:
        parts = urlsplit(server.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1000)
        writer.write(f"GET {parts.path}events HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        async with asyncio.timeout(20):
            await reader.readline()
            await Flood.ended.wait()
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(1_000_000):
                    pass
        writer.close()
