"""Reports of large runs, and the daemon beside an open live page: `python benchmarks/bench_report.py`. Takes about two minutes.

Times of commands are from exec to exit. A page is opened by Chromium, where it and Playwright are there; else that row is missing.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tempfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import aiohttp
import psutil
from bench_growth import begin, fill
from support.instance import HERE, Instance, environment, governor
from support.rows import Row, table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SOME = 10_000
MANY = 1_000_000
REPEATED = 5
WATCHED_SECONDS = 20.0
MEGABYTE = 1e6
SIMULATE = {"environment": "world", "agents": ["agent"], "max_steps": 5, "transport": "in_process"}


def run_of(episodes: int, **phase: Any) -> dict[str, Any]:
    return {
        "name": "report",
        "conductors": {
            "environments": {"world": {"entry": "user_code.step_world:Endless"}},
            "agents": {"agent": {"entry": "user_code.step_agent:TrivialAgent"}},
        },
        "phases": [{"name": "train", "simulate": {**SIMULATE, "episodes": episodes}, **phase}],
    }


async def measure() -> list[Row]:
    return [*await _of_some(), *await _of_many()]


async def _of_some() -> list[Row]:
    tasks = [{"id": "nothing", "call": "time:time", "repeat": SOME}]
    async with Instance("--ray-cpus", "2") as instance:
        result, _ = await instance.run(run_of(SOME, tasks=tasks))
        found = await _reported(instance, result.uid, f"{SOME:,} episodes and {SOME:,} tasks", 2.0, 1.0)
        return [*found, *await _beside_a_page(instance)]


async def _of_many() -> list[Row]:
    folder = Path(tempfile.mkdtemp(prefix="gb-"))
    try:
        uid = await begin(folder, 2 * MANY)
        await fill(folder, uid, 2 * MANY, MANY)
        async with Instance(folder=folder, ready_seconds=300.0) as instance:
            beside = await _watched(instance, uid)
            await instance.executor.abort(uid)
            await instance.executor.wait(uid)
            rows = await _reported(instance, uid, f"{MANY:,} episodes", 10.0, 2.0)
        return [
            *rows,
            _share(f"the daemon beside a live page of a run of {MANY:,} episodes at work", *beside),
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _reported(instance: Instance, uid: str, what: str, seconds: float, megabytes: float) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="gb-") as folder:
        file = Path(folder) / "report.html"
        arguments = ("--broker", instance.executor.endpoint, "report", uid, "--output", str(file))
        took = [await asyncio.to_thread(_timed, *arguments) for _ in range(REPEATED)]
        rows = [
            Row(
                what=f"`governor report`, {what}",
                figure=median(took),
                unit="s",
                at_most=seconds,
                note=f"p50 of {REPEATED}, {min(took):.2f} to {max(took):.2f} s",
            ),
            Row(what="its file", figure=file.stat().st_size / MEGABYTE, unit="MB", at_most=megabytes),
        ]
        opened = await asyncio.to_thread(_opened, file)
        if opened is not None:
            rows.append(Row(what="until Chromium shows it", figure=opened, unit="s", at_most=1.0))
        return rows


def _timed(*arguments: str) -> float:
    begun = perf_counter()
    subprocess.run(governor(*arguments), env=environment(), check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - begun


def _opened(file: Path) -> float | None:
    """Seconds until the outcome is there and the browser has drawn it; the browser is warm. None without one."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright  # it may not be there
    except ImportError:
        return None
    if chromium is None:
        return None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        took = []
        for _ in range(REPEATED):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            begun = perf_counter()
            page.goto(file.as_uri())
            page.wait_for_selector("#outcome")
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            took.append(perf_counter() - begun)
            page.close()
        browser.close()
    return median(took)


async def _beside_a_page(instance: Instance) -> list[Row]:
    """A run that is at work for the whole time, first without a page, then with one."""
    uid = await instance.executor.submit(run_of(MANY), folder=HERE)
    async for event in instance.executor.watch(uid):
        if event.kind == "episode.ended":
            break
    beside = await _watched(instance, uid)
    await instance.executor.abort(uid)
    await instance.executor.wait(uid)
    return [_share("the daemon beside a live page of a run at work", *beside)]


def _share(what: str, without: float, beside: float, events: int) -> Row:
    return Row(
        what=what,
        figure=beside - without,
        unit="of a core",
        at_most=0.02,
        note=f"{without:.3f} without a page, {beside:.3f} with one, which got {events} events in {WATCHED_SECONDS:g} s",
    )


async def _watched(instance: Instance, uid: str) -> tuple[float, float, int]:
    """CPU of the daemon in cores, without a page and with one, and the events that this one got."""
    without = await _cpu_of(instance)
    async with (
        _viewed(instance, uid) as url,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None)) as session,
        session.get(f"{url}events?run={uid}") as answer,
    ):
        page = _Page(answer)
        taking = asyncio.create_task(page.take())
        beside = await _cpu_of(instance)
        taking.cancel()
        await asyncio.wait({taking})
        return without, beside, page.events


class _Page:
    """Takes the events of a live page, and counts them."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.events = 0
        self._answer = answer

    async def take(self) -> None:
        with suppress(aiohttp.ClientError, ValueError):
            async for chunk in self._answer.content.iter_any():
                self.events += chunk.count(b"event: ")


@asynccontextmanager
async def _viewed(instance: Instance, uid: str) -> AsyncIterator[str]:
    """The address of a `governor view`."""
    process = await asyncio.create_subprocess_exec(
        *governor("--broker", instance.executor.endpoint, "view", uid),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", (await process.stdout.readline()).decode())
        assert found is not None
        yield found[0]
    finally:
        process.terminate()
        await process.wait()


async def _cpu_of(instance: Instance) -> float:
    daemon = psutil.Process(instance.daemon_pid)
    before = daemon.cpu_times()
    await asyncio.sleep(WATCHED_SECONDS)
    after = daemon.cpu_times()
    return (after.user + after.system - before.user - before.system) / WATCHED_SECONDS


def main() -> None:
    print(table(asyncio.run(measure())))


if __name__ == "__main__":
    main()
