"""A daemon as it is used from other machines: keys, roles, files, reloads, deaths, and lines that are slow, lossy and cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from governor.executor import Executor
from tests.support.network_relay import Relay
from tests.system.conftest import HERE, Instance

pytestmark = pytest.mark.system

ADDRESS = "127.0.0.1"


def free_port() -> int:
    import socket  # for this alone

    with socket.create_server((ADDRESS, 0)) as taken:
        return taken.getsockname()[1]


class Keys:
    """The keys of an instance, and the contexts of its clients, who have a folder of their own."""

    def __init__(self, instance: Instance, endpoint: str) -> None:
        self.instance = instance
        self.endpoint = endpoint
        self.folder = instance.folder / "s" / "keys"
        self.home = instance.folder / "elsewhere"
        instance.environ |= {
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
        }

    async def new(self, name: str, role: str) -> Path:
        out = self.home / f"{name}.toml"
        out.parent.mkdir(exist_ok=True)
        code, _, errors = await self.instance.governor(
            *("keys", "new", name, "--role", role, "--endpoint", self.endpoint),
            *("--keys", self.folder, "--out", out),
        )
        assert code == 0, errors
        return out


@pytest.fixture
def keys(instance):
    return Keys(instance, f"tcp://{ADDRESS}:{free_port()}")


async def test_an_operator_hands_in_a_folder_and_a_viewer_reads_what_came_of_it(instance, keys, walk):
    ada, bob = await keys.new("ada", "operator"), await keys.new("bob", "viewer")
    home = keys.home / "code"
    home.mkdir()
    shutil.move(instance.folder / "user_code.py", home)  # the daemon's machine does not have it
    (home / "run.yaml").write_text(json.dumps(walk(episodes=20)))
    async with instance.serve("--listen", keys.endpoint) as tree:

        async def as_(context, *words):
            return await instance.governor("--context", context, *words)

        code, output, errors = await as_(ada, "submit", home / "run.yaml", "--wait")
        assert code == 0, errors
        [run] = (await tree.executor.list()).runs
        assert (run.submitted_by["name"], run.submitted_by["role"]) == ("ada", "operator")
        folder = instance.folder / "s/runs" / run.uid
        shutil.move(folder / "episodes", folder / "away")  # its own files are not read by the client
        shutil.copytree(folder / "away", folder / "episodes")
        code, output, errors = await as_(bob, "results", run.uid, "--of", "episodes", "--format", "csv")
        assert (code, len(output.splitlines())) == (0, 21), errors
        code, output, errors = await as_(bob, "results", run.uid, "--of", "steps", "--format", "csv")
        assert code == 0, errors
        assert len(output.splitlines()) > 100
        assert [*(keys.home / "cache/run-governor").rglob("train.parquet")]
        code, output, errors = await as_(bob, "report", run.uid, "--output", keys.home / "report.html")
        assert (code, (keys.home / "report.html").stat().st_size > 50_000) == (0, True), errors
        code, _, errors = await as_(bob, "logs", run.uid)
        assert code == 0, errors
        for words in (("abort", run.uid), ("submit", home / "run.yaml"), ("drain",), ("reload",)):
            code, _, errors = await as_(bob, *words)
            assert (code, "the key 'bob' is a viewer's" in errors) == (77, True), words
    log = (instance.folder / "log").read_text()
    assert '"request.not_permitted"' in log
    assert '"name": "bob"' in log


async def test_a_key_that_is_taken_away_ends_a_watch_at_the_reload(instance, keys, walk):
    bob = await keys.new("bob", "viewer")
    async with instance.serve("--listen", keys.endpoint) as tree:
        uid = await tree.executor.submit(walk(entry="user_code:Sleeps"), folder=instance.folder)
        watching = asyncio.create_task(instance.governor("--context", bob, "watch", uid, "--json"))
        async with Executor(context=str(bob), timeout=60) as executor:  # bob has come in
            assert (await executor.status(uid)).runs
        code, output, _ = await instance.governor("keys", "remove", "bob", "--keys", keys.folder)
        assert (code, "taken away" in output) == (0, True)
        assert (await tree.executor.reload()).changed == ("keys",)
        code, _, errors = await watching
        assert code == 77, errors
        code, _, errors = await instance.governor("--context", bob, "status")
        assert (code, "does not know the key" in errors) == (77, True)
        await keys.new("carol", "viewer")
        (keys.folder / "dan.toml").write_text("role = 1")
        code, _, errors = await instance.governor("--broker", tree.executor.endpoint, "reload")
        assert (code, "dan.toml: role must be one of viewer, operator" in errors) == (78, True)
        (keys.folder / "dan.toml").unlink()
        assert (await tree.executor.reload()).changed == ("keys",)
        os.kill(tree.broker.pid, signal.SIGKILL)  # the next one knows the same keys
        async with Executor(context=str(keys.home / "carol.toml"), timeout=60) as executor:
            assert (await executor.status(uid)).runs
        await tree.executor.abort(uid)
        await tree.end(uid)


async def test_a_watch_from_elsewhere_goes_on_after_the_death_of_the_daemon(instance, keys, walk):
    bob = await keys.new("bob", "viewer")
    async with instance.serve("--listen", keys.endpoint) as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        async with Executor(context=str(bob), patience=60) as follower:
            watching = follower.watch(uid)
            following = asyncio.create_task(_numbers(watching))
            await tree.until(uid, "episode.ended")
            os.kill(tree.daemon.pid, signal.SIGKILL)
            await tree.gone()
            async with instance.serve("--listen", keys.endpoint) as other:
                events, _ = await other.end(uid)
                async with asyncio.timeout(60):
                    assert await following == [event.seq for event in events]
                assert watching.end.outcome == "finished"


async def _numbers(watching):
    return [event.seq async for event in watching]


async def test_a_port_that_is_taken_and_an_address_that_is_none_are_told(instance, keys):
    async with instance.serve("--listen", keys.endpoint):
        for endpoint, code, wanted in (
            (keys.endpoint, 75, "Address already in use"),
            ("tcp://192.0.2.1:5", 78, "cannot listen at tcp://192.0.2.1:5"),
            ("ipc:///tmp/x", 78, "a network is reached over tcp"),
            ("5555", 78, "expected ipc:///path or tcp://address:port"),
        ):
            folders = ("--state-dir", instance.folder / "s2", "--runtime-dir", instance.folder / "r2")
            found = await instance.governor("serve", *folders, "--listen", endpoint)
            assert (found[0], wanted in found[2]) == (code, True), found


# -- lines ----------------------------------------------------------------------------------------------------


def _why_no_namespaces() -> str:
    if not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return "ip, unshare and nsenter are needed"
    tried = subprocess.run(
        ["unshare", "-n", "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"],
        capture_output=True,
        check=False,
    )
    return f"no network namespaces: {tried.stderr.decode().strip()}" if tried.returncode else ""


class Namespace:
    """A network of its own, which a process holds."""

    def __init__(self) -> None:
        self.holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
        while Path(f"/proc/{self.holder.pid}/comm").read_text() != "sleep\n":
            pass  # it enters before it becomes that
        self.inside = ("nsenter", "-t", str(self.holder.pid), "-n")
        self.run("ip", "link", "set", "lo", "up")

    def run(self, *words: str) -> None:
        subprocess.run([*self.inside, *words], check=True)

    def join(self, other: Namespace, number: int) -> None:
        """A line between the two, from 10.77.<number>.1 to 10.77.<number>.2."""
        mine, theirs = f"l{number}", f"r{number}"
        pid = str(other.holder.pid)
        self.run("ip", "link", "add", mine, "type", "veth", "peer", "name", theirs, "netns", pid)
        for space, name, end in ((self, mine, 1), (other, theirs, 2)):
            space.run("ip", "addr", "add", f"10.77.{number}.{end}/24", "dev", name)
            space.run("ip", "link", "set", name, "up")

    def close(self) -> None:
        self.holder.kill()
        self.holder.wait()


class Inside(Instance):
    """A daemon in a namespace."""

    def __init__(self, folder: Path, space: Namespace) -> None:
        super().__init__(folder)
        self.space = space

    def arguments(self, *more: str) -> list[str]:
        return [*self.space.inside, *super().arguments(*more)]


@contextlib.asynccontextmanager
async def daemon_in(space: Namespace, address: str):
    folder = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
    instance = Inside(folder, space)
    keys = Keys(instance, f"tcp://{address}:5555")
    try:
        await keys.new("ada", "operator")
        async with instance.serve("--listen", keys.endpoint) as tree:
            yield tree, keys
    finally:
        assert instance.processes() == []
        shutil.rmtree(folder)


@pytest.mark.long
@pytest.mark.skipif(bool(_why_no_namespaces()), reason=_why_no_namespaces() or "-")
async def test_whole_runs_over_lines_that_are_slow_lossy_and_cut(walk):
    """Two daemons and a client, each in a network of its own. A relay delays and breaks one line; the other one is pulled out."""
    spaces = client, first, second = Namespace(), Namespace(), Namespace()
    try:
        client.join(first, 1)
        client.join(second, 2)
        async with (
            daemon_in(first, "10.77.1.2") as (_, of_slow),
            daemon_in(second, "10.77.2.2") as (cut, of_cut),
            Relay(client.inside, ("10.77.1.2", 5555)) as relay,
        ):
            text = (of_slow.home / "ada.toml").read_text()
            (of_slow.home / "ada.toml").write_text(text.replace("10.77.1.2:5555", relay.address))
            runs = [
                asyncio.create_task(_play(keys, client, walk(episodes=3_000), name))
                for keys, name in ((of_slow, "slow"), (of_cut, "cut"))
            ]
            await _begun(cut, runs)
            client.run("ip", "link", "set", "l2", "down")
            await asyncio.sleep(3)  # so long it is cut
            client.run("ip", "link", "set", "l2", "up")
            async with asyncio.timeout(240):
                found = await asyncio.gather(*runs)
        for code, output, errors in found:
            assert code == 0, errors
            numbers = [json.loads(line)["seq"] for line in output.splitlines() if '"seq"' in line]
            assert numbers == list(range(1, len(numbers) + 1))
            assert len(numbers) > 3_000
        assert relay.breaks > 3
    finally:
        for space in spaces:
            space.close()


async def _play(keys: Keys, space: Namespace, run: dict, name: str) -> tuple[int | None, str, str]:
    home = keys.home / "code"
    home.mkdir()
    shutil.copy(HERE / "user_code.py", home)
    (home / "run.yaml").write_text(json.dumps({**run, "name": name}))
    words = ("--context", keys.home / "ada.toml", "submit", home / "run.yaml", "--watch", "--json")
    process = await asyncio.create_subprocess_exec(
        *(*space.inside, sys.executable, "-m", "governor", *map(str, words)),
        env=keys.instance.environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, output.decode(), errors.decode()


async def _begun(tree, playing) -> None:
    async with asyncio.timeout(60):
        while True:
            assert not any(each.done() for each in playing), [
                each.result() for each in playing if each.done()
            ]
            runs = (await tree.executor.list()).runs
            if runs:
                await tree.until(runs[0].uid, "episode.ended")
                return
            await asyncio.sleep(0.05)
