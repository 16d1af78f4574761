"""Memory and disk space of processes and folders: real ones, and those that disappear during the measurement."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from governor.processes import kill_tree
from governor.processes.kill_tree import UNMARKED
from governor.run_file.model import LimitsSection
from governor.runs import resource_usage
from governor.runs.limits import RunLimits
from governor.runs.resource_usage import (
    Meter,
    disk_of,
    memory_of,
    run_pids,
)

MIB = 1024**2
FILL = "import sys; held = bytearray(b'x') * int(sys.argv[1]); print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def child():
    """`child(arguments...)` starts Python and waits for its first line."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        process.first = process.stdout.readline()
        return process

    yield start
    for process in started:
        process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()


def test_memory_is_what_a_process_and_all_below_it_take(child):
    parent = child(
        "-c",
        "import subprocess, sys\n"
        "below = subprocess.Popen([sys.executable, '-c', sys.argv[1], sys.argv[2]], start_new_session=True,"
        " stdout=subprocess.PIPE)\n"
        "below.stdout.readline(); print(below.pid, flush=True); sys.stdin.read(); below.kill(); below.wait()",
        FILL,
        str(300 * MIB),
    )
    assert run_pids({parent.pid: UNMARKED}) == {parent.pid, int(parent.first)}
    assert 300 * MIB < memory_of(run_pids({parent.pid: UNMARKED})) < 340 * MIB


def test_pages_that_several_share_count_once(child):
    code = (
        "import os, sys\n"
        "held = bytearray(b'x') * int(sys.argv[1])\n"
        "if (below := os.fork()) == 0: sys.stdin.read(); os._exit(0)\n"
        "print(below, flush=True); sys.stdin.read(); os.kill(below, 9); os.wait()"
    )
    parent = child("-c", code, str(100 * MIB))
    assert 100 * MIB < memory_of(run_pids({parent.pid: UNMARKED})) < 140 * MIB


def test_whoever_bears_the_mark_of_a_conductor_is_of_its_family_and_the_dead_are_not(child):
    mark = kill_tree.mark_of_child(kill_tree.new_mark(), 0)
    code = (
        "import sys; from governor.processes import kill_tree; kill_tree.mark_self(int(sys.argv[2]));" + FILL
    )
    runner = child("-c", code, "1", str(kill_tree.mark_of_runner(mark, 4)))
    ended = subprocess.Popen([sys.executable, "-c", code, "1", str(mark)], stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    conductor = child("-c", FILL, "1")
    assert run_pids({conductor.pid: mark}) == {conductor.pid, runner.pid}
    ended.wait()


def test_who_has_ended_uses_nothing():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert run_pids({ended.pid: UNMARKED}) == {ended.pid}
    assert memory_of({ended.pid}) == 0


def test_who_ends_and_is_not_reaped_uses_nothing(child):
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert memory_of(run_pids({zombie.pid: UNMARKED})) == 0
    zombie.wait()


def test_who_may_not_be_looked_into_counts_what_is_resident(child, monkeypatch):
    process = child("-c", FILL, str(50 * MIB))

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr("builtins.open", refuse)
    found = memory_of({process.pid})
    monkeypatch.undo()
    assert 50 * MIB < found < 90 * MIB


def test_disk_is_what_files_take(tmp_path):
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "deeper" / "file").write_bytes(b"x" * 3 * MIB)
    before = disk_of(tmp_path)
    assert 3 * MIB <= before < 3.2 * MIB
    (tmp_path / "again").hardlink_to(tmp_path / "deep" / "deeper" / "file")
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 30)
    assert disk_of(tmp_path) < before + 0.2 * MIB


def test_a_folder_that_is_gone_takes_nothing_and_a_walk_can_be_given_up(tmp_path):
    assert disk_of(tmp_path / "gone") == 0
    (tmp_path / "file").write_bytes(b"x" * MIB)
    cancelled = threading.Event()
    cancelled.set()
    assert disk_of(tmp_path, cancelled=cancelled) == 0


class Conductors:
    """`rounds` gets an item whenever a measurement begins."""

    def __init__(self, pids):
        self.rounds = asyncio.Queue()
        self._pids = pids

    @property
    def processes(self):
        self.rounds.put_nowait(None)
        return {str(pid): SimpleNamespace(pid=pid, mark=UNMARKED) for pid in self._pids}


@contextlib.asynccontextmanager
async def metered(folder, *pids, **limits):
    """The limits of a run that is measured, and a queue of those that are exceeded."""
    posted = asyncio.Queue()
    conductors = Conductors(pids)
    section = LimitsSection(**limits)
    counted = RunLimits(section)
    run = SimpleNamespace(
        uid="r1",
        assignment=SimpleNamespace(run=SimpleNamespace(limits=section)),
        folder=folder,
        effects=conductors,
        limits=counted,
        stamp=("r1", 5.0),
        post=posted.put_nowait,
    )
    measuring = asyncio.create_task(Meter(run).run())
    yield counted, posted, conductors.rounds
    measuring.cancel()
    await asyncio.wait({measuring})


async def test_a_meter_tells_the_first_limit_that_is_exceeded_once(tmp_path, child, monkeypatch):
    monkeypatch.setattr(resource_usage, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(resource_usage, "SHARE", 0)
    process = child("-c", FILL, str(50 * MIB))
    (tmp_path / "file").write_bytes(b"x" * 2 * MIB)
    limits = {"memory": 30 * MIB, "disk": MIB, "tasks": 5}
    async with metered(tmp_path, process.pid, **limits) as (counted, posted, rounds), asyncio.timeout(20):
        exceeded = await posted.get()
        assert (exceeded.limit, exceeded.value) == ("memory", 30 * MIB)
        (tmp_path / "more").write_bytes(b"x" * MIB)
        for _ in range(rounds.qsize() + 2):  # one that may have begun before, and a whole one after it
            await rounds.get()
    assert posted.empty()
    assert counted.used["tasks"] == 0
    assert counted.used["memory"] > 50 * MIB
    assert counted.used["disk"] >= 3 * MIB, "it goes on measuring, for the status"


async def test_a_measurement_that_fails_is_logged_and_is_not_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(resource_usage, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(resource_usage, "SHARE", 0)
    (tmp_path / "file").write_bytes(b"x" * 2 * MIB)
    measured = iter([OSError(24, "Too many open files")])

    def fails_once(folder, *, cancelled):
        for error in measured:
            raise error
        return disk_of(folder, cancelled=cancelled)

    monkeypatch.setattr(resource_usage, "disk_of", fails_once)
    async with metered(tmp_path, disk=MIB) as (_, posted, _), asyncio.timeout(20):
        assert (await posted.get()).limit == "disk"


async def test_without_a_limit_nothing_is_measured(tmp_path):
    async with metered(tmp_path, os.getpid(), wall_clock=5) as (counted, _, rounds):
        await asyncio.sleep(0)
    assert counted.used.keys() == {"episodes", "steps", "tasks"}
    assert rounds.empty()


async def test_the_loop_runs_while_a_measurement_hangs(tmp_path, monkeypatch):
    loop, went_on = asyncio.get_running_loop(), asyncio.Queue()
    turn = threading.Event()

    def hang(folder, *, cancelled):
        loop.call_soon_threadsafe(turn.set)
        loop.call_soon_threadsafe(went_on.put_nowait, turn.wait(10))
        return 0

    monkeypatch.setattr(resource_usage, "disk_of", hang)
    async with metered(tmp_path, disk=MIB), asyncio.timeout(20):
        assert await went_on.get()


HANGS = """
import asyncio, pathlib, time, types
from governor.runs import resource_usage as usage
from governor.processes import kill_tree
from governor.processes.kill_tree import UNMARKED
from governor.run_file.model import LimitsSection

async def main():
    began, loop = asyncio.Event(), asyncio.get_running_loop()
    def hang(folder, *, cancelled):
        loop.call_soon_threadsafe(began.set)
        time.sleep(600)
    usage.disk_of = hang
    assignment = types.SimpleNamespace(run=types.SimpleNamespace(limits=LimitsSection(disk=2**20)))
    nobody = types.SimpleNamespace(processes={})
    run = types.SimpleNamespace(uid="r1", assignment=assignment, folder=pathlib.Path("."), effects=nobody)
    measuring = asyncio.create_task(usage.Meter(run).run())
    await began.wait()
    measuring.cancel()
    await asyncio.wait({measuring})

asyncio.run(main())
"""


def test_a_measurement_that_hangs_holds_neither_the_end_of_a_run_nor_that_of_the_daemon():
    assert subprocess.run([sys.executable, "-c", HANGS], timeout=30, check=False).returncode == 0


async def test_a_conductor_has_the_cpu_and_memory_of_all_that_it_has_started(child, monkeypatch):
    idle = child("-c", FILL, str(100 * MIB))
    busy = child("-c", "import itertools; print('begun', flush=True); [None for _ in itertools.repeat(None)]")
    usage = resource_usage.ConductorUsage()
    assert usage.of("a") == {"cpu": None, "memory": None}
    monkeypatch.setattr(resource_usage, "EVERY_SECONDS", 0.0)
    pids = {"a": {idle.pid}, "b": {idle.pid, busy.pid}}
    for seconds in (0.6, 0.8):  # the first ones do not count any more
        while resource_usage.cpu_seconds(busy.pid) < seconds:
            await asyncio.to_thread(os.sched_yield)
        await usage.measure(pids)
    assert usage.of("a")["cpu"] < 0.1
    assert 0.0 < usage.of("b")["cpu"] < 1.5
    assert 100 * MIB < usage.of("a")["memory"] < usage.of("b")["memory"]


async def test_a_measurement_that_hangs_holds_up_no_status(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(resource_usage, "memory_of", lambda pids: release.wait(30) and 1)
    monkeypatch.setattr(resource_usage, "MOST_SECONDS", 0.05)
    monkeypatch.setattr(resource_usage, "EVERY_SECONDS", 0.0)
    usage = resource_usage.ConductorUsage()
    try:
        async with asyncio.timeout(5):
            await usage.measure({"a": {os.getpid()}})
            await usage.measure({"a": {os.getpid()}})  # and starts no second thread's work
        assert usage.of("a")["memory"] is None
    finally:
        release.set()
