"""A disk that fills up, has no room, or is read-only: a small tmpfs below the state folder, in a mount namespace of its own.

Another process holds the namespace; the daemon is started within it, and its disk is reached through /proc. Nothing is
mounted outside, and nothing is left when the holder is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from governor.errors import ExitCode, TryAgain

pytestmark = pytest.mark.system

HOLD = 'mount -t tmpfs -o size=48m,nr_inodes=1k tmpfs "$1" && echo mounted && exec sleep 600'
MIB = 1 << 20


class Disk:
    """The state folder of an instance in the mount namespace of its daemon."""

    def __init__(self, instance, holder):
        self._instance = instance
        self._holder = holder
        self.folder = Path(f"/proc/{holder.pid}/root{instance.folder}/s")
        self._outside = instance.arguments
        (instance.folder / "governor.toml").write_text('disk_reserve = "12MiB"\n')
        instance.arguments = self.arguments

    def arguments(self, *more):
        config = str(self._instance.folder / "governor.toml")
        return ["nsenter", "-m", "-t", str(self._holder.pid), *self._outside("--config", config, *more)]

    def fill(self, *, leave=4096):
        """Allocates all free space in one call; space that is freed later stays free."""
        free = os.statvfs(self.folder)
        with (self.folder / "filler").open("ab") as filler:
            os.posix_fallocate(filler.fileno(), filler.tell(), free.f_bavail * free.f_frsize - leave)

    def use_up_the_files(self):
        """Uses up the inodes; bytes stay free."""
        (self.folder / "files").mkdir(exist_ok=True)
        with contextlib.suppress(OSError):
            for number in itertools.count():
                (self.folder / "files" / str(number)).touch()

    @contextlib.asynccontextmanager
    async def filling(self):
        """Takes freed space again and again."""

        async def take():
            with (self.folder / "filler").open("ab", buffering=0) as filler:
                while True:
                    with contextlib.suppress(OSError):
                        for _ in range(64):
                            filler.write(bytes(4096))
                    await asyncio.sleep(0)

        taking = asyncio.create_task(take())
        try:
            yield
        finally:
            taking.cancel()

    def empty(self):
        (self.folder / "filler").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "files", ignore_errors=True)

    def remount(self, how):
        mount = ["mount", "-o", f"remount,{how}", str(self._instance.folder / "s")]
        subprocess.run(["nsenter", "-m", "-t", str(self._holder.pid), *mount], check=True)

    def logged(self):
        """Events of the log since the last call."""
        path = self._instance.folder / "log"
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
        path.write_text("")
        assert [line for line in lines if "exception" in line] == [], "a full disk is no fault of ours"
        return [line["event"] for line in lines]


@pytest.fixture
def disk(instance):
    (instance.folder / "s").mkdir()
    command = ["unshare", "-m", "sh", "-c", HOLD, "sh", str(instance.folder / "s")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as holder:
        try:
            if holder.stdout.readline() != "mounted\n":
                pytest.skip("no mounts are permitted here")
            yield Disk(instance, holder)
        finally:
            holder.kill()


@contextlib.contextmanager
def writers_suspended(tree):
    """Suspends the daemon's processes, because their writes change the free space that is about to be taken."""
    writers = [tree.daemon, *tree.daemon.children(recursive=True)]
    for writer in writers:
        writer.suspend()
    try:
        for writer in writers:
            while not _is_stopped(writer.pid):
                pass
        yield
    finally:
        for writer in writers:
            writer.resume()


def _is_stopped(pid):
    """Whether all threads are stopped: a thread runs until it leaves the kernel."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] in "TZ" for stat in stats)


async def refused_start(instance):
    """Starts a daemon that must refuse to start. Returns its standard error."""
    process = await asyncio.create_subprocess_exec(
        *instance.arguments(), env=instance.environ, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        _, errors = await process.communicate()
    assert process.returncode == ExitCode.TRY_AGAIN
    return errors.decode()


async def assert_interrupted_and_continued(instance, walk, disk, use_up, *, before=None):
    """Calls `use_up` during a run; awaits `before(tree)` before that."""
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(episodes=3000), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        if before is not None:
            await before(tree)
        with writers_suspended(tree):
            use_up()
        async with asyncio.timeout(60):
            assert await tree.process.wait() == ExitCode.TRY_AGAIN
        assert instance.processes() == []
    logged = disk.logged()
    assert logged.count("disk.full") == 1
    assert "run.interrupted" in logged
    assert "journal.failed" not in logged, "a write in flight failed"

    use_up()
    assert "make room" in await refused_start(instance)
    disk.empty()
    await assert_finishes(instance, uid)


async def test_a_full_disk_interrupts_the_run_and_loses_nothing_acknowledged(instance, walk, disk):
    async def no_run_is_taken(tree):
        disk.fill(leave=8 * MIB)
        with pytest.raises(
            TryAgain, match=r"left, and a run is taken with 12 MiB \(disk_reserve\)"
        ) as caught:
            await tree.executor.submit(walk(episodes=3), folder=instance.folder)
        assert caught.value.code == "no_room"
        assert (await tree.executor.status()).state == "serving"

    await assert_interrupted_and_continued(instance, walk, disk, disk.fill, before=no_run_is_taken)


@pytest.mark.long
async def test_a_full_disk_without_reserve_loses_nothing_acknowledged(instance, walk, disk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(episodes=3000), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        async with disk.filling(), asyncio.timeout(60):
            assert await tree.process.wait() == ExitCode.TRY_AGAIN
        assert instance.processes() == []
    disk.empty()
    await assert_finishes(instance, uid)


@pytest.mark.long
async def test_a_disk_without_free_inodes_interrupts_the_runs_like_a_full_disk(instance, walk, disk):
    await assert_interrupted_and_continued(instance, walk, disk, disk.use_up_the_files)


@pytest.mark.long
async def test_a_conductor_that_dies_while_the_disk_is_full_uses_up_no_restart(instance, walk, disk):
    async with instance.serve() as tree:
        run = walk(episodes=3000, restarts=0, entry="user_code:DiesOfAFullDisk")
        uid = await tree.executor.submit(run, folder=instance.folder)
        async with asyncio.timeout(60):
            assert await tree.process.wait() == ExitCode.TRY_AGAIN
        assert instance.processes() == []
    disk.empty()
    await assert_finishes(instance, uid)


async def assert_finishes(instance, uid):
    """The run finishes, with each of its 3,000 episodes once."""
    async with instance.serve() as tree:
        events, result = await tree.end(uid)
    assert result.outcome == "finished", result.reason
    assert [event.kind for event in events].count("run.interrupted") == 1
    played = Counter(e.data["episode"]["index"] for e in events if e.kind == "episode.ended")
    assert played == Counter(range(3000))


FILLS = """
import shutil
import time


def fill(context):
    '''Half of the reserve is left but for a rest; it stops on the way, for what is faster than the daemon's looks goes unseen.'''
    for left in (11 << 20, 11 << 19):
        with (context.run_folder / "much").open("ab", buffering=0) as file:
            while shutil.disk_usage(context.run_folder).free > left:
                file.write(bytes(1 << 19))
        while not (context.run_folder / "go_on").exists():
            time.sleep(0.1)
    time.sleep(600)
"""


@pytest.mark.ray
@pytest.mark.long
async def test_the_run_that_fills_the_disk_ends_by_its_name_and_the_others_go_on(instance, walk, disk):
    (instance.folder / "fills.py").write_text(FILLS)
    greedy = {"name": "greedy", "phases": [{"name": "p", "tasks": [{"id": "t", "call": "fills:fill"}]}]}
    async with instance.serve("--slots", "2") as tree:
        other = await tree.executor.submit(walk(entry="user_code:Sleeps"), folder=instance.folder)
        await tree.until(other, "phase.started")
        uid = await tree.executor.submit(greedy, folder=instance.folder)
        async with asyncio.timeout(60):
            while "disk.reserve_touched" not in disk.logged():  # noqa: ASYNC110  # no event reports it
                await asyncio.sleep(0.05)
        (disk.folder / "runs" / uid / "go_on").touch()
        _, result = await tree.end(uid)
        assert result.outcome == "failed"
        assert re.fullmatch(
            r"the disk of all runs has [\d.]+ MiB left \(12 MiB are kept free\), and of the runs at work this one has taken most, "
            r"in phase p",
            result.reason,
        )
        (instance.folder / "awake").touch()
        _, result = await tree.end(other)
        assert result.outcome == "finished", result.reason


@pytest.mark.long
async def test_a_daemon_on_a_read_only_disk_refuses_to_start_and_gives_the_reason(instance, walk, disk):
    disk.remount("ro")
    assert "Read-only file system; mount its disk writable" in await refused_start(instance)
    disk.remount("rw")
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(episodes=3), folder=instance.folder)
        await tree.end(uid)
    disk.remount("ro")
    assert "Read-only file system; mount its disk writable" in await refused_start(instance)
    disk.remount("rw")
    async with instance.serve() as tree:
        assert (await tree.executor.result(uid)).outcome == "finished"
