"""Files removed under a daemon at work: sockets are bound again, and where that is no help it says so at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections import Counter

import pytest

from governor.errors import ExitCode, GovernorError
from governor.executor import Executor

pytestmark = pytest.mark.system

SOCKETS = ("broker.sock", "private.sock", "workers.sock")
EPISODES = 200


async def asleep(tree, walk) -> str:
    """A run in work whose agent sleeps until there is a file, so that it does not end meanwhile."""
    folder = tree.instance.folder
    uid = await tree.executor.submit(walk(entry="user_code:Sleeps", episodes=EPISODES), folder=folder)
    await tree.until(uid, "phase.started")
    return uid


async def finishes(tree, uid):
    (tree.instance.folder / "awake").touch()
    events, result = await tree.end(uid)
    assert result.outcome == "finished", result.reason
    played = Counter(e.data["episode"]["index"] for e in events if e.kind == "episode.ended")
    assert played == Counter(range(EPISODES))
    return events


async def new_client(instance, *, within: float) -> None:
    """Returns when one that has never been connected is answered."""
    async with asyncio.timeout(within):
        while True:
            with contextlib.suppress(GovernorError):
                async with Executor(
                    f"ipc://{instance.runtime}/broker.sock", timeout=2.0, patience=0.0
                ) as executor:
                    await executor.status()
                    return


def logged(instance, event: str) -> list[dict]:
    lines = (instance.folder / "log").read_text().splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in told if line["event"] == event]


@pytest.mark.parametrize(
    "removed",
    [
        SOCKETS,
        pytest.param(("broker.sock",), marks=pytest.mark.long),
        pytest.param(("workers.sock",), marks=pytest.mark.long),
    ],
    ids=" ".join,
)
async def test_sockets_are_bound_again_and_the_run_in_work_finishes(instance, walk, removed):
    async with instance.serve() as tree:
        uid = await asleep(tree, walk)
        before = {name: (instance.runtime / name).stat().st_ino for name in SOCKETS}
        for name in removed:
            (instance.runtime / name).unlink()
        async with asyncio.timeout(20):
            while not logged(instance, "broker.sockets_bound"):  # noqa: ASYNC110  # nobody else tells of it
                await asyncio.sleep(0.05)
        await new_client(instance, within=20)
        assert {name: (instance.runtime / name).stat().st_ino for name in SOCKETS}.keys() == before.keys()
        events = await finishes(tree, uid)
        assert [e.data for e in events if e.kind == "conductor.exited" and not e.data["expected"]] == []
        again = await tree.executor.submit(walk(episodes=20), folder=instance.folder)
        assert (await tree.end(again))[1].outcome == "finished"
    [told] = logged(instance, "broker.sockets_removed")
    assert told["sockets"] == ", ".join(
        str(instance.runtime / name)
        for name in ("broker.sock", "workers.sock", "private.sock")
        if name in removed
    )


@pytest.mark.parametrize("what", ["folder", pytest.param("contents", marks=pytest.mark.long)])
async def test_without_its_runtime_folder_the_daemon_goes_down_and_the_next_one_goes_on(instance, walk, what):
    async with instance.serve() as tree:
        uid = await asleep(tree, walk)
        shutil.rmtree(instance.runtime)
        if what == "contents":
            instance.runtime.mkdir(mode=0o700)
        assert await tree.gone() == ExitCode.TRY_AGAIN
    [told] = logged(instance, "daemon.fatal")
    assert told["reason"].startswith(f"{instance.runtime} was removed while in use, and the sockets with it")
    async with instance.serve() as tree:
        events = await finishes(tree, uid)
        [interrupted] = [e.data for e in events if e.kind == "run.interrupted"]
        assert str(instance.runtime) in interrupted["reason"]


@pytest.mark.parametrize(
    "how",
    [
        "removed",
        pytest.param("replaced", marks=pytest.mark.long),
        pytest.param("moved with its folder", marks=pytest.mark.long),
    ],
)
async def test_without_its_journal_the_daemon_goes_down_at_once(instance, walk, how):
    journal = instance.folder / "s" / "governor.db"
    async with instance.serve() as tree:
        await asleep(tree, walk)
        if how == "removed":
            journal.unlink()
        elif how == "replaced":
            shutil.copy(journal, instance.folder / "copy")
            (instance.folder / "copy").rename(journal)
        else:
            journal.parent.rename(instance.folder / "elsewhere")
        assert await tree.gone() == ExitCode.TRY_AGAIN
    [told] = logged(instance, "daemon.fatal")
    assert told["reason"].startswith(f"the journal {journal} was removed or replaced while in use: ")
    assert not logged(instance, "daemon.crashed")


@pytest.mark.parametrize(
    "kept",
    [pytest.param("s/runs", id="files"), pytest.param("r", id="sockets", marks=pytest.mark.long)],
)
async def test_a_run_whose_folder_is_removed_fails_with_its_name_and_the_daemon_serves_on(
    instance, walk, kept
):
    async with instance.serve() as tree:
        uid = await asleep(tree, walk)
        folder = instance.folder / kept / uid
        folder.rename(instance.folder / "elsewhere")  # at once, whatever is being written there
        _, result = await tree.end(uid)
        reason = f"the folder {folder} was removed or replaced in phase train"
        assert (result.outcome, result.reason) == ("failed", reason)
        [run] = (await tree.executor.status(uid)).runs
        assert (run.outcome, run.reason) == ("failed", reason)
        again = await tree.executor.submit(walk(episodes=20), folder=instance.folder)
        assert (await tree.end(again))[1].outcome == "finished"
    [told] = logged(instance, "run.folder_removed")
    assert (told["run"], told["folder"]) == (uid, str(folder))
