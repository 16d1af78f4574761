"""Reports of real runs: by the daemon, by its journal when it is gone, and live."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.support.pages.report_documents import Page

pytestmark = pytest.mark.system

RUN = {
    "name": "mixed",
    "conductors": {
        "environments": {"lake": {"entry": "gymnasium:FrozenLake-v1", "params": {"is_slippery": False}}},
        "agents": {"walker": {"entry": "user_code:Walker"}},
    },
    "phases": [
        {"name": "train", "simulate": {"environment": "lake", "agents": ["walker"], "episodes": 40}},
    ],
}
TOKEN = re.compile(r"http://127\.0\.0\.1:\d+/[\w-]+/")


async def governor(instance, *arguments, code=0):
    command = [sys.executable, "-m", "governor", *map(str, arguments)]
    done = await asyncio.create_subprocess_exec(
        *command,
        cwd=instance.folder,
        env=instance.environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await done.communicate()
    assert done.returncode == code, err.decode()
    return out.decode() if code == 0 else err.decode()


def values(table, name):
    [column] = [each for each in table["columns"] if each["name"] == name]
    dictionary = column.get("dictionary")
    return [dictionary[each] for each in column["values"]] if dictionary else column["values"]


async def test_a_report_has_the_numbers_of_the_results_with_and_without_the_daemon(instance):
    async with instance.serve() as tree:
        broker = f"ipc://{instance.runtime}/broker.sock"
        uid = await tree.executor.submit(RUN, folder=instance.folder)
        await tree.end(uid)
        file = instance.folder / "report.html"
        said = await governor(instance, "--broker", broker, "report", uid, "-o", file)
        assert str(file) in said
        result = json.loads(await governor(instance, "--broker", broker, "results", uid, "--json"))
        episodes = json.loads(
            await governor(instance, "--broker", broker, "results", uid, "--of", "episodes", "--json")
        )
        os.kill(tree.daemon.pid, signal.SIGKILL)
        await tree.gone()
    [run] = Page(file.read_text()).data["runs"]
    assert run["missing"] == []
    [phase], [shown] = result["phases"], run["summary"]["phases"]
    assert shown["metrics"] == phase["metrics"]
    assert shown["episodes"] == phase["episodes"]
    for name, key in {"episode": "index", "return": "value", "steps": "steps", "seconds": "seconds"}.items():
        assert values(run["episodes"], name) == [each[key] for each in episodes]
    assert {curve["metric"]: curve["count"] for curve in run["curves"]}["return"] == 40
    assert {"run", "phases", "agent.walker"} <= {lane["name"] for lane in run["timeline"]["lanes"]}
    assert [steps["why"] for steps in run["steps"]]
    assert "FrozenLake" in run["run_file"]
    assert run["environment"]["run_governor"]
    left_over = instance.folder / "left" / "runs" / uid
    await asyncio.to_thread(shutil.copytree, instance.folder / "s" / "runs" / uid, left_over)
    for name in ("episodes", "logs"):
        await asyncio.to_thread(shutil.rmtree, left_over / name)
    other = instance.folder / "other.html"
    await governor(instance, "report", uid, "--state-dir", instance.folder / "left", "-o", other)
    [pruned] = Page(other.read_text()).data["runs"]
    assert pruned["summary"] == run["summary"]
    assert [line.split(":")[0] for line in pruned["missing"]] == ["curves", "timeline"]
    assert all("there is no journal" in line for line in pruned["missing"])
    await governor(instance, "report", uid[:6], "--state-dir", instance.folder / "s", "-o", other)
    [left] = Page(other.read_text()).data["runs"]
    assert left == run


async def test_a_conductor_that_was_killed_is_a_failure_with_its_last_lines(instance):
    conductors = {**RUN["conductors"], "agents": {"walker": {"entry": "user_code:Killed"}}}
    async with instance.serve() as tree:
        killed = {**RUN, "conductors": conductors, "restart": {"conductors": 0}}
        uid = await tree.executor.submit(killed, folder=instance.folder)
        await tree.end(uid)
        file = instance.folder / "report.html"
        broker = f"ipc://{instance.runtime}/broker.sock"
        await governor(instance, "--broker", broker, "report", uid, "-o", file)
    [run] = Page(file.read_text()).data["runs"]
    [failure] = [each for each in run["failures"] if each["kind"] == "conductor"]
    assert (failure["first"], failure["number"]) == ("conductor agent.walker", 1)
    assert failure["reason"] == "its process ended with exit code -9"
    assert [line["text"] for line in failure["log"]] == ["before the kill"]


async def test_errors_say_what_to_do(instance):
    async with instance.serve() as tree:
        broker = f"ipc://{instance.runtime}/broker.sock"
        assert "nosuch" in await governor(instance, "--broker", broker, "report", "nosuch", code=4)
        uid = await tree.executor.submit(RUN, folder=instance.folder)
        await tree.end(uid)
        nowhere = await governor(instance, "--broker", broker, "report", uid, "-o", "/proc/no/r.html", code=2)
        assert "/proc/no/r.html" in nowhere
        folder = await governor(instance, "--broker", broker, "report", uid, "-o", "missing/r.html", code=2)
        assert "there is no folder missing" in folder
        piped = await governor(instance, "--broker", broker, "report", uid, "-o", "/dev/stdout")
        assert Page(piped).data["runs"][0]["summary"]["uid"] == uid
        wrong = await governor(instance, "--broker", broker, "report", uid, "--episode", "train", code=2)
        assert "PHASE:N" in wrong
        twice = await governor(instance, "--broker", broker, "report", uid, uid, code=2)
        assert "named twice" in twice
        asked = instance.folder / "asked.html"
        wanted = ("--episode", "train:7", "--episode", "train:999")
        _, _, said = await instance.governor("--broker", broker, "report", uid, *wanted, "-o", asked)
        assert "--episode train:999 is not in the report: no steps of it are on record" in said
        [run] = Page(asked.read_text()).data["runs"]
        assert [steps["episode"] for steps in run["steps"] if steps["why"] == "asked"] == [7]
        assert "report.html" not in await governor(instance, "--broker", broker, "results", uid)


async def test_a_run_without_a_daemon_writes_its_report_and_names_it_last(instance):
    (instance.folder / "run.yaml").write_text(json.dumps(RUN))
    said = await governor(instance, "run", "run.yaml", "--quiet", "--state-dir", instance.folder / "alone")
    *_, last = said.strip().splitlines()
    file = last.removeprefix("Report: ")
    assert file.endswith("/report.html")
    page = await asyncio.to_thread(Path(file).read_text)
    assert Page(page).data["runs"][0]["summary"]["outcome"] == "finished"


async def test_with_data_the_report_is_named_on_standard_error_alone(instance):
    (instance.folder / "run.yaml").write_text(json.dumps(RUN))
    _, out, said = await instance.governor(
        "run", "run.yaml", "--json", "--state-dir", instance.folder / "alone"
    )
    file = Path(json.loads(out.splitlines()[-1])["folder"]) / "report.html"
    assert (said.strip().splitlines()[-1], file.exists()) == (f"Report: {file}", True)


class View:
    """`governor view` of a daemon."""

    def __init__(self, instance, broker, *arguments):
        self._command = [sys.executable, "-m", "governor", "--broker", broker, "view", *arguments]
        self._instance = instance
        self.url = ""

    async def __aenter__(self):
        environ = {**self._instance.environ}
        del environ["GOVERNOR_TEST_INSTANCE"]  # it outlives a daemon of the test
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=self._instance.folder,
            env=environ,
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(30):
            while not (found := TOKEN.search((await self._process.stdout.readline()).decode())):
                pass
        self.url = found[0]
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_):
        await self._session.close()
        self._process.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            assert await self._process.wait() == 130

    async def get(self, path="", **more):
        async with self._session.get(self.url + path, **more) as answer:
            return answer.status, await answer.text(), answer.headers

    async def events(self, uid):
        """Names and data of the events, as they come."""
        async with self._session.get(
            f"{self.url}events?run={uid}", timeout=aiohttp.ClientTimeout(None)
        ) as answer:
            name = ""
            async for raw in answer.content:
                line = raw.decode().rstrip("\n")
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield name, json.loads(line.removeprefix("data: "))


async def until(events, accepts, seconds=30):
    async with asyncio.timeout(seconds):
        async for name, data in events:
            if accepts(name, data):
                return data
    raise AssertionError("the stream has ended")


def summary(outcome):
    return lambda name, data: (
        name == "section" and data["name"] == "summary" and data["value"]["outcome"] == outcome
    )


async def test_the_live_page_follows_a_run_over_a_restart_of_the_daemon(instance, walk):
    broker = f"ipc://{instance.runtime}/broker.sock"
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(episodes=3000), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        async with View(instance, broker, uid) as view:
            status, html, headers = await view.get()
            assert (status, headers["Cache-Control"]) == (200, "no-store")
            assert Page(html).data["runs"][0]["summary"]["uid"] == uid
            events = view.events(uid)
            await until(events, summary("in work"))
            os.kill(tree.daemon.pid, signal.SIGKILL)
            await until(events, lambda name, data: name == "daemon" and not data["up"])
            await tree.gone()
            async with instance.serve() as other:
                await until(events, lambda name, data: name == "daemon" and data["up"])
                await other.executor.abort(uid, "seen enough")
                ended = await until(events, summary("aborted"))
                assert ended["value"]["reason"] == "seen enough"
                runs = await until(view.events(uid), lambda name, _: name == "runs")
                assert [run["uid"] for run in runs] == [uid]
            await events.aclose()


async def test_the_live_page_is_for_who_has_its_address_on_this_machine(instance):
    broker = f"ipc://{instance.runtime}/broker.sock"
    async with instance.serve(), View(instance, broker) as view:
        assert (await view.get())[0] == 200
        wrong = view.url[:-2] + ("A" if view.url[-2] != "A" else "B") + "/"
        async with aiohttp.ClientSession() as session:
            async with session.get(wrong) as answer:
                assert answer.status == 404
            async with session.get(view.url, headers={"Host": "evil.example"}) as answer:
                assert answer.status == 403
            async with session.post(view.url) as answer:
                assert answer.status == 405
        assert (await view.get("?run=nosuch"))[0] == 404


async def test_view_without_a_daemon_says_so(instance):
    said = await governor(instance, "--broker", f"ipc://{instance.folder}/none.sock", "view", code=69)
    assert "none.sock" in said
