"""Runs side by side under a real daemon: GPUs as data, priorities, slots that come and go by a reload, bounds of a user."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from governor.errors import TryAgain, UsageError

pytestmark = pytest.mark.system


def asks(name, *, gpus=1, **more):
    """A program that tells its GPUs, and waits for a file."""
    told = f'echo "$CUDA_VISIBLE_DEVICES" > {name}.gpus; until test -e go; do sleep 0.05; done'
    task = {"id": "ask", "command": ["sh", "-c", told]}
    return {"name": name, "phases": [{"name": "p", "tasks": [task]}], "requires": {"gpus": gpus}, **more}


def sleeps(walk, **more):
    return {**walk(entry="user_code:Sleeps", episodes=2), **more}


async def until(is_so):
    async with asyncio.timeout(60):
        while True:
            if await is_so():
                return
            await asyncio.sleep(0.05)


async def in_work(tree):
    return {run.uid for run in (await tree.executor.status()).runs if run.state == "running"}


def configured(instance, text):
    path = instance.folder / "governor.toml"
    path.write_text(text)
    return path


async def test_no_two_runs_see_one_gpu_also_over_the_death_of_the_daemon(instance):
    path = configured(instance, 'slots = 3\n[machine]\ngpus = ["4", "7"]\n')

    def seen(name):
        file = instance.folder / f"{name}.gpus"
        return file.read_text().strip() if file.exists() else ""

    async def both():
        return bool(seen("a") and seen("b"))

    async with instance.serve("--config", str(path)) as tree:
        first, second, third = [
            await tree.executor.submit(asks(name), folder=instance.folder) for name in "abc"
        ]
        await until(both)
        assert {seen("a"), seen("b")} == {"4", "7"}
        [waits] = (await tree.executor.status(third)).runs
        assert waits.waits_for.startswith("1 gpu (0 free); held by ")
        with pytest.raises(UsageError, match=r"requires 3 gpus \(2 on this machine\)"):
            await tree.executor.submit(asks("d", gpus=3), folder=instance.folder)
        for name in "ab":
            (instance.folder / f"{name}.gpus").unlink()
        os.kill(tree.daemon.pid, signal.SIGKILL)
        await tree.gone()
        async with instance.serve("--config", str(path)) as other:
            await until(both)
            assert {seen("a"), seen("b")} == {"4", "7"}
            assert seen("c") == ""
            (instance.folder / "go").touch()
            for uid in (first, second, third):
                assert (await other.end(uid))[1].outcome == "finished"
            assert seen("c") in {"4", "7"}


async def test_the_highest_priority_goes_first_and_it_can_change_while_it_waits(instance, walk):
    async with instance.serve() as tree:
        uids = {}
        for name, priority in [("work", 0), ("low", 0), ("high", 5), ("raised", 0)]:
            made = sleeps(walk, name=name, priority=priority)
            uids[name] = await tree.executor.submit(made, folder=instance.folder)
            if name == "work":
                await tree.until(uids["work"], "phase.started")
        assert (await tree.executor.set(uids["raised"], {"priority": 9})).changed
        (instance.folder / "awake").touch()
        began = {}
        for name, uid in uids.items():
            events, result = await tree.end(uid)
            assert result.outcome == "finished", result.reason
            began[name] = next(event.at for event in events if event.kind == "run.assigned")
        assert sorted(began, key=began.get) == ["work", "raised", "high", "low"]


async def test_slots_come_at_once_and_go_with_their_runs(instance, walk):
    path = configured(instance, "slots = 1\n")
    async with instance.serve("--config", str(path)) as tree:
        uids = [await tree.executor.submit(sleeps(walk), folder=instance.folder) for _ in range(3)]

        async def work(number):
            return len(await in_work(tree)) == number

        await until(lambda: work(1))
        configured(instance, "slots = 3\n")
        assert (await tree.executor.reload()).changed == ("slots",)
        await until(lambda: work(3))
        configured(instance, "slots = 1\n")
        await tree.executor.reload()
        assert await in_work(tree) == {*uids}, "they end their runs first"
        more = await tree.executor.submit(sleeps(walk), folder=instance.folder)
        (instance.folder / "awake").touch()
        for uid in [*uids, more]:
            assert (await tree.end(uid))[1].outcome == "finished"

        async def one_is_left():
            return (await tree.executor.status()).slots == 1

        await until(one_is_left)
        uid = await tree.executor.submit(sleeps(walk), folder=instance.folder)
        assert (await tree.end(uid))[1].outcome == "finished"


async def test_a_user_has_bounds(instance, walk):
    path = configured(instance, "slots = 2\n[owners]\nrunning = 1\nqueued = 1\n")
    async with instance.serve("--config", str(path)) as tree:
        first = await tree.executor.submit(sleeps(walk), folder=instance.folder)
        await tree.until(first, "phase.started")
        second = await tree.executor.submit(sleeps(walk), folder=instance.folder)
        [waits] = (await tree.executor.status(second)).runs
        assert waits.waits_for == f"another run of user {os.getuid()} to end (owners.running: 1)"
        with pytest.raises(TryAgain, match=f"user {os.getuid()} has 1 queued runs"):
            await tree.executor.submit(sleeps(walk), folder=instance.folder)
        (instance.folder / "awake").touch()
        for uid in (first, second):
            assert (await tree.end(uid))[1].outcome == "finished"
