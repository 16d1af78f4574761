"""Whole process trees: `governor serve` behind its guard, real runs, and proof that nothing is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from governor.executor import Executor
from governor.processes.leftovers import instance_of
from governor.processes.readiness import is_readable
from governor.runs.record.replay import Replay
from governor.tasks.cluster import head
from tests.support.living import first_child

HERE = Path(__file__).parent
WALK = {
    "name": "walk",
    "conductors": {
        "environments": {
            "lake": {"entry": "gymnasium:FrozenLake-v1", "params": {"is_slippery": False}, "pool": 2}
        },
        "agents": {"walker": {"entry": "user_code:Walker"}},
    },
    "phases": [
        {
            "name": "train",
            "simulate": {"environment": "lake", "agents": ["walker"], "episodes": 600, "workers": 2},
        }
    ],
}
"""Takes some seconds, so that a fault can strike during the run."""
SECONDS_WITHOUT_EVENT = 60
LOG_TAIL = 10_000
"""Characters of the daemon's log that are shown with a failure."""


class Tree:
    """One `governor serve`: the guard is `process`, the second guard its child, the daemon the second guard's child."""

    def __init__(self, instance: Instance, process: asyncio.subprocess.Process) -> None:
        self.instance = instance
        self.process = process
        self.executor: Executor

    @property
    def second_guard(self) -> psutil.Process:
        [second_guard] = psutil.Process(self.process.pid).children()
        return second_guard

    @property
    def daemon(self) -> psutil.Process:
        """The first child of the second guard: the kernel lists adopted orphans after it."""
        return first_child(self.second_guard)

    @contextlib.contextmanager
    def deaths(self):
        """Enter it while the tree runs; `alive(within=s)` lists the processes not dead after s seconds. Zombies count as dead."""
        root = psutil.Process(self.process.pid)
        handles = {os.pidfd_open(process.pid): process for process in root.children(recursive=True)}

        def alive(*, within: float) -> list[psutil.Process]:
            end = time.monotonic() + within
            return [
                process
                for handle, process in handles.items()
                if not is_readable(handle, timeout=max(0.0, end - time.monotonic()))
            ]

        try:
            yield alive
        finally:
            for handle in handles:
                os.close(handle)

    @property
    def broker(self) -> psutil.Process:
        return next(each for each in self.daemon.children(recursive=True) if each.name() == "broker")

    @property
    def sweeper(self) -> psutil.Process:
        return next(each for each in self.second_guard.children() if each.name() == "gov-sweeper")

    async def pid_of(self, uid: str, conductor: str) -> int:
        [run] = (await self.executor.status(uid)).runs
        return next(c.pid for c in run.conductors if c.name == conductor)

    async def until(self, uid: str, kind: str, **wanted):
        """The first event of this kind with these data."""
        async with contextlib.aclosing(self.watch(uid)) as events:
            async for event in events:
                if event.kind == kind and all(event.data.get(key) == value for key, value in wanted.items()):
                    return event
        raise AssertionError(f"the run ended without {kind} {wanted}")

    async def end(self, uid: str):
        """Waits for the end of the run. Returns its events and its result."""
        events = [event async for event in self.watch(uid)]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert [event.kind for event in events].count("run.ended") == 1
        replay = Replay(events[0].uid)
        for event in events:
            replay.take(event)
        assert replay.end().difference is None
        return events, await self.executor.result(uid)

    async def watch(self, uid: str):
        """The events of the run. TimeoutError where none comes for a minute: a run that goes on says so."""
        async with (
            asyncio.timeout(SECONDS_WITHOUT_EVENT) as limit,
            contextlib.aclosing(self.executor.watch(uid)) as events,
        ):
            async for event in events:
                limit.reschedule(asyncio.get_running_loop().time() + SECONDS_WITHOUT_EVENT)
                yield event

    async def gone(self) -> int:
        """Waits for the end of the guard, asserts that no other process is left, returns the exit code."""
        async with asyncio.timeout(20):
            code = await self.process.wait()
        assert self.instance.processes() == []
        return code

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await self.gone()


class Instance:
    """A daemon with its folders. A variable in their environment identifies its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runtime = folder / "r"
        self.environ = {
            **os.environ,
            "GOVERNOR_TEST_INSTANCE": str(folder),
            "PYTHONPATH": str(HERE.parents[1]),
        }
        self.environ.pop("NOTIFY_SOCKET", None)

    def arguments(self, *more: str) -> list[str]:
        folders = ("--state-dir", str(self.folder / "s"), "--runtime-dir", str(self.runtime))
        return [sys.executable, "-m", "governor", "serve", *folders, "--log-format", "json", *more]

    @contextlib.asynccontextmanager
    async def serve(self, *more: str):
        with (self.folder / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self.arguments(*more), env=self.environ, stderr=log, cwd=self.folder
            )
        tree = Tree(self, process)
        try:
            await self._ready(process)
            async with Executor(f"ipc://{self.runtime}/broker.sock", timeout=5.0) as tree.executor:
                yield tree
        finally:
            await tree.stop()

    async def _ready(self, process: asyncio.subprocess.Process) -> None:
        """The executor waits a second for a socket; a daemon on a busy machine may take longer."""
        async with asyncio.timeout(30):
            while process.returncode is None:
                try:
                    async with Executor(f"ipc://{self.runtime}/broker.sock") as executor:
                        await executor.status()
                        return
                except Exception as error:  # noqa: BLE001  # not ready yet; the last error is kept
                    self.last_error = error
        raise AssertionError(
            f"the daemon ended with {process.returncode}: {(self.folder / 'log').read_text()}"
        )

    async def governor(self, *arguments: object) -> tuple[int | None, str, str]:
        """Runs a verb. Returns its exit code, standard output and standard error."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "governor", *map(str, arguments),
            env=self.environ, cwd=self.folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(90):
            out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    def processes(self) -> list[str]:
        """Pid and command of each live process of this instance."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("GOVERNOR_TEST_INSTANCE") == str(self.folder):
                    found.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
        return found


@pytest.fixture
def instance():
    folder = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
    shutil.copy(HERE / "user_code.py", folder)
    made = Instance(folder)
    yield made
    if (folder / "log").exists():
        sys.stdout.write((folder / "log").read_text()[-LOG_TAIL:])
    assert made.processes() == []
    if (folder / "s").exists():  # a killed daemon that no other followed
        head.remove_left_over(instance_of(folder / "s"))
    shutil.rmtree(folder)


@pytest.fixture
def walk():
    """Makes a run file; arguments change what the test needs: `walk(restarts=0, entry=...)`."""

    def make(*, restarts: int = 2, entry: str = "user_code:Walker", episodes: int = 600):
        made = {**WALK, "restart": {"conductors": restarts}}
        made["conductors"] = {**WALK["conductors"], "agents": {"walker": {"entry": entry}}}
        [phase] = WALK["phases"]
        made["phases"] = [{**phase, "simulate": {**phase["simulate"], "episodes": episodes}}]
        return made

    return make
