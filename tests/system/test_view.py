"""`governor view` beside a daemon that runs, ends, dies and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time

import aiohttp
import pytest

from governor.errors import ExitCode

pytestmark = pytest.mark.system
SHOWN_SECONDS = 2.0
"""Within them what happened is on the page, from when the daemon has it on record."""


@contextlib.asynccontextmanager
async def viewed(instance, *arguments):
    """The process of `governor view --json` and the address that it prints."""
    command = (
        sys.executable,
        "-m",
        "governor",
        "--broker",
        f"ipc://{instance.runtime}/broker.sock",
        "view",
        "--json",
    )
    environ = {**instance.environ, "GOVERNOR_TEST_INSTANCE": ""}  # it outlives the daemon
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, env=environ, stdout=asyncio.subprocess.PIPE, cwd=instance.folder
    )
    try:
        async with asyncio.timeout(30):
            line = await process.stdout.readline()
        yield process, json.loads(line)["url"]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Page:
    """What a page knows: the sections of its run, the list of runs, whether the daemon is up."""

    def __init__(self, answer):
        self.sections = {}
        self.sent = []
        self.runs = []
        self.up = None
        self._content = answer.content

    async def until(self, is_so):
        """Takes events until `is_so()`. Returns the time of the last one."""
        name = ""
        async with asyncio.timeout(60):
            while not is_so():
                kind, _, text = (await self._content.readuntil(b"\n")).decode().rstrip("\n").partition(": ")
                if kind == "event":
                    name = text
                elif kind == "data":
                    self._take(name, json.loads(text))
        return time.time()

    def _take(self, name, data):
        if name == "section":
            self.sections[data["name"]] = data["value"]
            self.sent.append(data["name"])
        elif name == "runs":
            self.runs = data
        else:
            self.up = data["up"]

    @property
    def episodes(self):
        """Rows of the table, those of the result, those of the curve."""
        counted = [
            sum(phase["episodes"].values()) for phase in self.sections.get("summary", {}).get("phases", [])
        ]
        in_curves = [curve["count"] for curve in self.sections.get("curves", [])]
        return self.sections.get("episodes", {}).get("total"), sum(counted), in_curves and in_curves[0]

    @property
    def outcome(self):
        return self.sections.get("summary", {}).get("outcome")


@contextlib.asynccontextmanager
async def opened(url, uid):
    async with (
        aiohttp.ClientSession(read_bufsize=2**24) as browser,
        browser.get(f"{url}events?run={uid}", timeout=aiohttp.ClientTimeout(total=None)) as answer,
    ):
        yield Page(answer)


async def test_the_end_of_a_run_is_shown_within_two_seconds_with_all_sections(instance, walk):
    pause = instance.folder / "pause"
    pause.touch()  # the run is at work until the page has shown that
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(entry="user_code:Pauses"), folder=instance.folder)
        async with viewed(instance) as (_, url), opened(url, uid) as page:
            await page.until(lambda: page.outcome == "in work" and page.up)
            pause.unlink()
            shown = await page.until(lambda: page.outcome == "finished")
            result = await tree.executor.result(uid)
            assert shown - result.ended_at < SHOWN_SECONDS
            await page.until(lambda: page.episodes == (600, 600, 600) and page.sections.get("run_file"))
            await page.until(lambda: page.runs[0]["outcome"] == "finished")
            assert page.sections["missing"] == []
            assert page.sent.count("run_file") == 1


async def test_a_daemon_that_is_killed_is_away_within_two_seconds_and_its_run_goes_on_with_the_next(
    instance, walk
):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(entry="user_code:Slow", episodes=1000), folder=instance.folder)
        async with viewed(instance, uid[:6]) as (process, url), opened(url, uid) as page:
            await page.until(lambda: page.outcome == "in work" and page.sections.get("curves"))
            killed = time.time()
            os.kill(tree.daemon.pid, signal.SIGKILL)
            shown = await page.until(lambda: page.up is False)
            assert shown - killed < SHOWN_SECONDS
            assert page.outcome == "in work"
            await tree.gone()
            async with instance.serve() as other:
                await page.until(lambda: page.up is True)
                await other.end(uid)
                await page.until(lambda: page.outcome == "finished")
                await page.until(lambda: page.episodes == (1000, 1000, 1000))
                marks = page.sections["timeline"]["marks"]["kind"]
                assert "restart" in marks or "interrupted" in marks
            assert process.returncode is None


async def test_a_run_that_was_removed_stays_as_it_ended_and_one_that_is_not_known_is_lost(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(episodes=5), folder=instance.folder)
        async with viewed(instance) as (_, url), opened(url, uid) as page:
            await page.until(lambda: page.outcome == "finished" and page.sections.get("run_file"))
            await tree.executor.prune(keep_runs=0)
            await page.until(lambda: page.runs == [])
            assert page.outcome == "finished"
            async with opened(url, "absent") as other:
                await other.until(lambda: other.outcome == "lost")
                assert "absent" in other.sections["summary"]["reason"]


async def test_ctrl_c_ends_the_view_at_once_and_no_run(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(episodes=5000), folder=instance.folder)
        async with viewed(instance) as (process, url), opened(url, uid) as page:
            await page.until(lambda: page.sections.get("curves"))
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(5):
                assert await process.wait() == ExitCode.INTERRUPTED
            [run] = (await tree.executor.status(uid)).runs
            assert run.outcome is None
            await tree.executor.abort(uid)
            await tree.end(uid)
