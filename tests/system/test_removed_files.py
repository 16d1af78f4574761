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
    folder = tree.house.folder
    uid = await tree.executor.submit(walk(entry="user_code:Sleeps", episodes=EPISODES), folder=folder)
    await tree.until(uid, "phase.started")
    return uid


async def finishes(tree, uid):
    (tree.house.folder / "awake").touch()
    events, result = await tree.end(uid)
    assert result.outcome == "finished", result.reason
    played = Counter(e.data["episode"]["index"] for e in events if e.kind == "episode.ended")
    assert played == Counter(range(EPISODES))
    return events


async def new_client(house, *, within: float) -> None:
    """Returns when one that has never been connected is answered."""
    async with asyncio.timeout(within):
        while True:
            with contextlib.suppress(GovernorError):
                async with Executor(
                    f"ipc://{house.runtime}/broker.sock", timeout=2.0, patience=0.0
                ) as executor:
                    await executor.status()
                    return


def logged(house, event: str) -> list[dict]:
    lines = (house.folder / "log").read_text().splitlines()
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
async def test_sockets_are_bound_again_and_the_run_in_work_finishes(house, walk, removed):
    async with house.serve() as tree:
        uid = await asleep(tree, walk)
        before = {name: (house.runtime / name).stat().st_ino for name in SOCKETS}
        for name in removed:
            (house.runtime / name).unlink()
        async with asyncio.timeout(20):
            while not logged(house, "broker.sockets_bound"):  # noqa: ASYNC110  # nobody else tells of it
                await asyncio.sleep(0.05)
        await new_client(house, within=20)
        assert {name: (house.runtime / name).stat().st_ino for name in SOCKETS}.keys() == before.keys()
        events = await finishes(tree, uid)
        assert [e.data for e in events if e.kind == "conductor.exited" and not e.data["expected"]] == []
        again = await tree.executor.submit(walk(episodes=20), folder=house.folder)
        assert (await tree.end(again))[1].outcome == "finished"
    [told] = logged(house, "broker.sockets_removed")
    assert told["sockets"] == ", ".join(
        str(house.runtime / name)
        for name in ("broker.sock", "workers.sock", "private.sock")
        if name in removed
    )


@pytest.mark.parametrize("what", ["folder", pytest.param("contents", marks=pytest.mark.long)])
async def test_without_its_runtime_folder_the_daemon_goes_down_and_the_next_one_goes_on(house, walk, what):
    async with house.serve() as tree:
        uid = await asleep(tree, walk)
        shutil.rmtree(house.runtime)
        if what == "contents":
            house.runtime.mkdir(mode=0o700)
        assert await tree.gone() == ExitCode.TRY_AGAIN
    [told] = logged(house, "daemon.fatal")
    assert told["reason"].startswith(f"{house.runtime} was removed while in use, and the sockets with it")
    async with house.serve() as tree:
        events = await finishes(tree, uid)
        [interrupted] = [e.data for e in events if e.kind == "run.interrupted"]
        assert str(house.runtime) in interrupted["reason"]


@pytest.mark.parametrize(
    "how",
    [
        "removed",
        pytest.param("replaced", marks=pytest.mark.long),
        pytest.param("moved with its folder", marks=pytest.mark.long),
    ],
)
async def test_without_its_journal_the_daemon_goes_down_at_once(house, walk, how):
    journal = house.folder / "s" / "governor.db"
    async with house.serve() as tree:
        await asleep(tree, walk)
        if how == "removed":
            journal.unlink()
        elif how == "replaced":
            shutil.copy(journal, house.folder / "copy")
            (house.folder / "copy").rename(journal)
        else:
            journal.parent.rename(house.folder / "elsewhere")
        assert await tree.gone() == ExitCode.TRY_AGAIN
    [told] = logged(house, "daemon.fatal")
    assert told["reason"].startswith(f"the journal {journal} was removed or replaced while in use: ")
    assert not logged(house, "daemon.crashed")


@pytest.mark.parametrize(
    "kept",
    [pytest.param("s/runs", id="files"), pytest.param("r", id="sockets", marks=pytest.mark.long)],
)
async def test_a_run_whose_folder_is_removed_fails_with_its_name_and_the_daemon_serves_on(house, walk, kept):
    async with house.serve() as tree:
        uid = await asleep(tree, walk)
        folder = house.folder / kept / uid
        folder.rename(house.folder / "elsewhere")  # at once, whatever is being written there
        _, result = await tree.end(uid)
        reason = f"the folder {folder} was removed or replaced in phase train"
        assert (result.outcome, result.reason) == ("failed", reason)
        [run] = (await tree.executor.status(uid)).runs
        assert (run.outcome, run.reason) == ("failed", reason)
        again = await tree.executor.submit(walk(episodes=20), folder=house.folder)
        assert (await tree.end(again))[1].outcome == "finished"
    [told] = logged(house, "run.folder_removed")
    assert (told["run"], told["folder"]) == (uid, str(folder))
