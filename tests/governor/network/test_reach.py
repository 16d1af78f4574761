"""A daemon's API as clients on other machines reach it: who they are, what they may, which files they get."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from itertools import count

import pytest

from governor.errors import NoSuchRun, NotPermitted, TryAgain, UsageError
from governor.executor import Executor
from governor.executor import files as executor_files
from governor.messages import RunStatus, Submit, Submitted
from governor.messages.files import ReadFile, StorePackage
from governor.network.contexts import Context
from tests.support.daemon.api_world import RUN, TWO, open_api
from transport.network.curve import ClientKeys, KeyPair, Member, NetworkSettings

SERVER, ADA, BOB = (KeyPair.new() for _ in range(3))
MEMBERS = (
    Member(name="ada", role="operator", public=ADA.public),
    Member(name="bob", role="viewer", public=BOB.public),
)
BY_ADA = {"address": "127.0.0.1", "name": "ada", "role": "operator"}


class Reached:
    """A daemon stand-in, and clients elsewhere: `ada` operates, `bob` looks."""

    def __init__(self, daemon, ada, bob, asked):
        self.daemon, self.ada, self.bob, self.asked = daemon, ada, bob, asked
        self.runs = daemon.runs

    async def run(self, **files):
        uid = await self.ada.submit(RUN, folder=self.home)
        (self.runs / uid).mkdir(exist_ok=True)
        for name, text in files.items():
            self.write(uid, name, text)
        return uid

    def write(self, uid, name, text):
        path = self.runs / uid / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path


@pytest.fixture
async def reached(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    network = NetworkSettings(endpoint="tcp://127.0.0.1:*", pair=SERVER, members=MEMBERS)
    async with contextlib.AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(open_api(network))
        clients = []
        for name, pair in (("ada", ADA), ("bob", BOB)):
            keys = ClientKeys(server=SERVER.public, pair=pair)
            path = tmp_path / f"{name}.toml"
            Context(endpoint=daemon.network_endpoint, keys=keys).write(path)
            client = Executor(context=str(path), timeout=30.0, patience=0.3)
            clients.append(await stack.enter_async_context(client))
        asked = []
        answer = clients[1]._ask

        async def noted(request, *arguments, **options):
            asked.append(request)
            return await answer(request, *arguments, **options)

        monkeypatch.setattr(clients[1], "_ask", noted)
        made = Reached(daemon, *clients, asked)
        made.home = tmp_path / "home"
        made.home.mkdir()
        (made.home / "m.py").write_text("def f(): return 1\n")
        yield made


# -- who ------------------------------------------------------------------------------------------------------


async def test_a_run_shows_whose_key_submitted_it(reached):
    uid = await reached.ada.submit(RUN, folder=reached.home)
    [run] = (await reached.bob.status(uid)).runs
    assert isinstance(run, RunStatus)
    assert run.submitted_by == BY_ADA
    [event] = reached.daemon.journal.events(uid)
    assert event.data["by"] == BY_ADA


async def test_a_viewer_looks_and_changes_nothing(reached):
    uid = await reached.ada.submit(RUN, folder=reached.home)
    assert [run.uid for run in (await reached.bob.list()).runs] == [uid]
    for change in (
        reached.bob.abort(uid),
        reached.bob.submit(RUN, folder=reached.home),
        reached.bob.submit_group({**RUN, "matrix": {"seed": [1, 2]}}, folder=reached.home),
        reached.bob.pause(uid),
        reached.bob.prune(keep_runs=0),
        reached.bob.drain(),
    ):
        with pytest.raises(NotPermitted, match="'bob' is a viewer's"):
            await change
    assert [run.state for run in (await reached.bob.status(uid)).runs] == ["queued"]


async def test_the_bounds_of_each_user_are_those_of_each_key(reached):
    reached.daemon.queue.owner_limit = 1
    await reached.ada.submit(RUN, folder=reached.home)
    with pytest.raises(TryAgain, match="user ada has 1 queued runs"):
        await reached.ada.submit(RUN, folder=reached.home)
    await reached.daemon.executor.submit(RUN)


# -- code -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grouped", [False, True])
async def test_the_folder_goes_along_with_a_submit(reached, grouped):
    if grouped:
        group = await reached.ada.submit_group({**TWO, "matrix": {"seed": [1, 2]}}, folder=reached.home)
        uids = group.runs
    else:
        uids = [await reached.ada.submit(RUN, folder=reached.home)]
    for uid in uids:
        row = reached.daemon.journal.run(uid)
        assert row.folder == str(reached.runs / uid / "code")
        assert (reached.runs / uid / "code" / "m.py").read_text() == "def f(): return 1\n"
    [package] = (reached.runs / "packages").iterdir()
    assert sorted(path.name for path in package.iterdir()) == ["m.py"]
    await reached.ada.submit(RUN, folder=reached.home, key="again")
    assert len([*(reached.runs / "packages").iterdir()]) == 1


async def test_a_run_of_a_package_keeps_a_copy_of_it(reached):
    raw, folder = await reached.ada._with_code(dict(RUN), str(reached.home))
    assert raw == {**RUN, "code": "snapshot"}
    with pytest.raises(UsageError, match="a run of a package has code: snapshot"):
        await reached.daemon.executor._ask(Submit(run=RUN, folder=folder), Submitted)


async def test_a_large_folder_goes_in_parts(reached, monkeypatch):
    monkeypatch.setattr(executor_files, "PIECE_BYTES", 1_000)
    (reached.home / "data").write_bytes(os.urandom(20_000))
    uid = await reached.ada.submit(RUN, folder=reached.home)
    assert (reached.runs / uid / "code" / "data").read_bytes() == (reached.home / "data").read_bytes()


async def test_who_sends_the_same_files_at_the_same_time_is_told(reached, monkeypatch):
    async def stuck(part):
        return 5 if isinstance(part, StorePackage) else None

    monkeypatch.setattr(reached.ada, "_store", stuck)
    with pytest.raises(TryAgain, match="sends the same files"):
        await reached.ada.submit(RUN, folder=reached.home)


# -- files ----------------------------------------------------------------------------------------------------


def read(folder):
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_relative_to(folder / "code")
    }


async def test_a_copy_has_what_the_run_has(reached, tmp_path):
    uid = await reached.run(
        result_json="{}", episodes__train_jsonl="1\n", episodes__train_parquet="steps", empty_x=""
    )
    folder = await reached.bob.files(uid)
    assert folder.is_relative_to(tmp_path / "cache" / "run-governor")
    assert read(folder) == {
        "result.json": "{}",
        "episodes/train.jsonl": "1\n",
        "episodes/train.parquet": "steps",
        "empty.x": "",
    }
    assert await reached.daemon.executor.files(uid) == reached.runs / uid  # on this machine there is no copy


async def test_only_what_has_changed_is_fetched(reached):
    uid = await reached.run(result_json="{}", episodes__train_jsonl="1\n" * 10_000)
    folder = await reached.bob.files(uid)
    reached.asked.clear()
    assert await reached.bob.files(uid) == folder
    assert not [each for each in reached.asked if isinstance(each, ReadFile)]
    with (reached.runs / uid / "episodes/train.jsonl").open("a") as file:
        file.write("2\n")
    await reached.bob.files(uid)
    assert read(folder)["episodes/train.jsonl"] == "1\n" * 10_000 + "2\n"
    [asked] = [each for each in reached.asked if isinstance(each, ReadFile)]
    assert (asked.path, asked.offset) == ("episodes/train.jsonl", 20_000 - executor_files.OVERLAP)


async def test_what_was_replaced_is_fetched_anew_and_what_has_gone_goes(reached):
    uid = await reached.run(result_json="x" * 10_000, usage_jsonl="1", more_txt="")
    folder = await reached.bob.files(uid)
    reached.write(uid, "result_json", "y" * 9_000 + "z" * 3_000)  # as if it had grown
    reached.write(uid, "usage_jsonl", "")
    (reached.runs / uid / "more.txt").unlink()
    await reached.bob.files(uid)
    assert read(folder) == {"result.json": "y" * 9_000 + "z" * 3_000, "usage.jsonl": ""}


async def test_a_copy_that_was_interrupted_goes_on(reached, monkeypatch):
    uid = await reached.run(result_json="abc" * 10_000)
    folder = await reached.bob.files(uid)
    (folder / "result.json").write_text("abc" * 5_000)  # its time is another one
    reached.asked.clear()
    await reached.bob.files(uid)
    assert read(folder) == {"result.json": "abc" * 10_000}
    assert [each.offset for each in reached.asked if isinstance(each, ReadFile)] == [
        15_000 - executor_files.OVERLAP
    ]


async def test_calls_for_the_same_copy_wait_for_each_other(reached):
    uid = await reached.run(result_json="{}", big_txt="x" * (3 << 20))
    folder = await reached.bob.files(uid)
    shutil.rmtree(folder)
    reached.asked.clear()

    async def bring():
        return read(await reached.bob.files(uid))

    first, *others = await asyncio.gather(*(bring() for _ in range(4)))
    assert first == {"result.json": "{}", "big.txt": "x" * (3 << 20)}
    assert others == [first] * 3
    asked = [(each.path, each.offset) for each in reached.asked if isinstance(each, ReadFile)]
    assert len(asked) == len(set(asked)), "the first one has brought it, for all"


async def test_steps_and_large_files_may_stay_there(reached):
    uid = await reached.run(
        result_json="{}", episodes__train_jsonl="1\n", episodes__train_parquet="x" * 5_000
    )
    assert set(read(await reached.bob.files(uid, steps=False))) == {"result.json", "episodes/train.jsonl"}
    assert set(read(await reached.bob.files(uid, most=100))) == {"result.json", "episodes/train.jsonl"}
    assert "episodes/train.parquet" in read(await reached.bob.files(uid))


async def test_a_large_file_comes_in_pieces_at_once(reached, monkeypatch):
    uid = await reached.run()
    data = os.urandom(9 << 20)
    (reached.runs / uid / "steps.parquet").write_bytes(data)
    folder = await reached.bob.files(uid)
    assert (folder / "steps.parquet").read_bytes() == data


async def test_a_file_in_whose_place_others_are_put_all_the_time_is_told(reached, monkeypatch):
    uid = await reached.run(result_json="x")
    answer, times = reached.bob._ask, count(1)

    async def replaced(request, *arguments, **options):
        found = await answer(request, *arguments, **options)
        path = reached.runs / uid / "result.json"
        beside = path.with_name("new")
        beside.write_text("y")
        os.utime(beside, ns=(1, next(times)))  # it may have the number of an earlier one
        beside.replace(path)
        return found

    monkeypatch.setattr(reached.bob, "_ask", replaced)
    with pytest.raises(TryAgain, match="changes faster than it can be copied"):
        await reached.bob.files(uid)


async def test_files_of_a_run_that_nobody_knows(reached):
    with pytest.raises(NoSuchRun):
        await reached.bob.files("nothing")


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "", "a//b", "."])
def test_a_daemon_cannot_write_elsewhere(tmp_path, path):
    with pytest.raises(Exception, match="no path below the folder of a run"):
        executor_files._place(tmp_path, path)
