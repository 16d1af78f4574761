"""Files removed while the daemon runs: it binds sockets again, or ends at once with the reason."""

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


async def sleeping_run(tree, walk) -> str:
    """Submits a run that cannot end meanwhile, because its agent sleeps until a file exists. Returns its uid."""
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
    """Returns when a new client has received an answer."""
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
    records = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in records if line["event"] == event]


@pytest.mark.parametrize(
    "removed",
    [
        SOCKETS,
        pytest.param(("broker.sock",), marks=pytest.mark.long),
        pytest.param(("workers.sock",), marks=pytest.mark.long),
    ],
    ids=" ".join,
)
async def test_removed_sockets_are_bound_again_and_the_current_run_finishes(instance, walk, removed):
    async with instance.serve() as tree:
        uid = await sleeping_run(tree, walk)
        before = {name: (instance.runtime / name).stat().st_ino for name in SOCKETS}
        for name in removed:
            (instance.runtime / name).unlink()
        async with asyncio.timeout(20):
            while not logged(instance, "broker.sockets_bound"):  # noqa: ASYNC110  # no event reports it
                await asyncio.sleep(0.05)
        await new_client(instance, within=20)
        assert {name: (instance.runtime / name).stat().st_ino for name in SOCKETS}.keys() == before.keys()
        events = await finishes(tree, uid)
        assert [e.data for e in events if e.kind == "conductor.exited" and not e.data["expected"]] == []
        again = await tree.executor.submit(walk(episodes=20), folder=instance.folder)
        assert (await tree.end(again))[1].outcome == "finished"
    [record] = logged(instance, "broker.sockets_removed")
    assert record["sockets"] == ", ".join(
        str(instance.runtime / name)
        for name in ("broker.sock", "workers.sock", "private.sock")
        if name in removed
    )


@pytest.mark.parametrize("what", ["folder", pytest.param("contents", marks=pytest.mark.long)])
async def test_without_its_runtime_folder_the_daemon_ends_and_the_next_daemon_continues_the_run(
    instance, walk, what
):
    async with instance.serve() as tree:
        uid = await sleeping_run(tree, walk)
        shutil.rmtree(instance.runtime)
        if what == "contents":
            instance.runtime.mkdir(mode=0o700)
        assert await tree.gone() == ExitCode.TRY_AGAIN
    [record] = logged(instance, "daemon.fatal")
    assert record["reason"].startswith(
        f"{instance.runtime} was removed while in use, and the sockets with it"
    )
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
async def test_without_its_journal_the_daemon_ends_at_once(instance, walk, how):
    journal = instance.folder / "s" / "governor.db"
    async with instance.serve() as tree:
        await sleeping_run(tree, walk)
        if how == "removed":
            journal.unlink()
        elif how == "replaced":
            shutil.copy(journal, instance.folder / "copy")
            (instance.folder / "copy").rename(journal)
        else:
            journal.parent.rename(instance.folder / "elsewhere")
        assert await tree.gone() == ExitCode.TRY_AGAIN
    [record] = logged(instance, "daemon.fatal")
    assert record["reason"].startswith(f"the journal {journal} was removed or replaced while in use: ")
    assert not logged(instance, "daemon.crashed")


@pytest.mark.parametrize(
    "kept",
    [pytest.param("s/runs", id="files"), pytest.param("r", id="sockets", marks=pytest.mark.long)],
)
async def test_a_run_whose_folder_is_removed_fails_with_its_path_and_the_daemon_continues(
    instance, walk, kept
):
    async with instance.serve() as tree:
        uid = await sleeping_run(tree, walk)
        folder = instance.folder / kept / uid
        folder.rename(instance.folder / "elsewhere")  # at once, also during a write
        _, result = await tree.end(uid)
        reason = f"the folder {folder} was removed or replaced in phase train"
        assert (result.outcome, result.reason) == ("failed", reason)
        [run] = (await tree.executor.status(uid)).runs
        assert (run.outcome, run.reason) == ("failed", reason)
        again = await tree.executor.submit(walk(episodes=20), folder=instance.folder)
        assert (await tree.end(again))[1].outcome == "finished"
    [record] = logged(instance, "run.folder_removed")
    assert (record["run"], record["folder"]) == (uid, str(folder))
